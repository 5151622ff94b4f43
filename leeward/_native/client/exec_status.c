/* A daemon's status, for people.
 *
 * Runs in:   the program `leeward`. cli/leeward_cli/fast.py is the same for Python. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec.h"
#include "text.h"

static void put(struct lw_buffer *buffer, const char *text)
{
	lw_put(buffer, text, strlen(text));
}

/* A scalar as Python's str; false for a container. */
static bool put_scalar(struct lw_buffer *buffer, const struct lw_value *value)
{
	char shown[LW_DOUBLE_TEXT] = "None";

	switch (value->type) {
	case LW_TEXT:
		lw_put(buffer, value->data, value->length);
		return true;
	case LW_NIL:
		break;
	case LW_BOOL:
		snprintf(shown, sizeof shown, "%s", value->boolean ? "True" : "False");
		break;
	case LW_INTEGER:
		snprintf(shown, sizeof shown, "%" PRId64, value->integer);
		break;
	case LW_HUGE:
		snprintf(shown, sizeof shown, "%" PRIu64, value->huge);
		break;
	case LW_NUMBER:
		lw_double_text(shown, value->number);
		break;
	default:
		return false;
	}
	put(buffer, shown);
	return true;
}

/* The entries of an array, or "key: value" of a map; false if one is a container. */
static bool put_entries(struct lw_buffer *buffer, const struct lw_value *value, const char *between,
			const char *if_none)
{
	struct lw_cursor inside = value->inside;
	struct lw_value item;

	for (uint32_t i = 0; i < value->entries; i++) {
		put(buffer, i ? between : "");
		lw_next(&inside, &item);
		if (value->type == LW_MAP) {
			put_scalar(buffer, &item);
			put(buffer, ": ");
			lw_next(&inside, &item);
		}
		if (!put_scalar(buffer, &item))
			return false;
	}
	put(buffer, value->entries ? "" : if_none);
	return true;
}

static bool put_detail(struct lw_buffer *buffer, const struct lw_value *value)
{
	if (value->type == LW_ARRAY)
		return put_entries(buffer, value, " ", "none");
	if (value->type == LW_MAP)
		return put_entries(buffer, value, "; ", "none");
	return put_scalar(buffer, value);
}

/* *name* on the left, so many characters wide, and a space. */
static void put_padded(struct lw_buffer *buffer, const uint8_t *name, size_t length, size_t width)
{
	lw_put(buffer, name, length);
	for (size_t used = lw_utf8_length(name, length); used < width; used++)
		put(buffer, " ");
	put(buffer, " ");
}

static void put_name(struct lw_buffer *buffer, const char *name)
{
	put_padded(buffer, (const uint8_t *)name, strlen(name), 13);
}

/* "4 total, 2 idle" */
static bool put_counts(struct lw_buffer *buffer, const struct lw_value *status, const char *name)
{
	struct lw_value counts, what, count;

	put_name(buffer, name);
	if (lw_find(status, name, &counts) && counts.type != LW_MAP)
		return false;
	for (uint32_t i = 0; i < counts.entries; i++) {
		put(buffer, i ? ", " : "");
		lw_next(&counts.inside, &what);
		lw_next(&counts.inside, &count);
		if (!put_scalar(buffer, &count))
			return false;
		put(buffer, " ");
		put_scalar(buffer, &what);
	}
	put(buffer, "\n");
	return true;
}

/* One layer: its state, and in brackets what else is known. */
static bool put_layer(struct lw_buffer *buffer, const struct lw_value *name, const struct lw_value *about)
{
	struct lw_cursor inside = about->inside, after;
	struct lw_value state, key, value;
	bool first = true;

	if (about->type != LW_MAP)
		return false;
	put(buffer, "  ");
	put_padded(buffer, name->data, name->length, 11);
	if (!lw_find(about, "state", &state))
		put(buffer, "?");
	else if (!put_scalar(buffer, &state))
		return false;
	for (uint32_t i = 0; i < about->entries; i++) {
		lw_next(&inside, &key);
		after = inside;
		lw_skip(&after);
		lw_next(&inside, &value);
		inside = after;
		if (lw_is(&key, "state"))
			continue;
		put(buffer, first ? " (" : ", ");
		first = false;
		put_scalar(buffer, &key);
		put(buffer, " ");
		if (!put_detail(buffer, &value))
			return false;
	}
	put(buffer, first ? "\n" : ")\n");
	return true;
}

static bool put_layers(struct lw_buffer *buffer, const struct lw_value *status)
{
	struct lw_value layers, name, about;
	struct lw_cursor after;

	put(buffer, "layers\n");
	if (lw_find(status, "layers", &layers) && layers.type != LW_MAP)
		return false;
	for (uint32_t i = 0; i < layers.entries; i++) {
		lw_next(&layers.inside, &name);
		after = layers.inside;
		lw_skip(&after);
		lw_next(&layers.inside, &about);
		layers.inside = after;
		if (!put_layer(buffer, &name, &about))
			return false;
	}
	return true;
}

/* Every other field, as it comes. */
static bool put_rest(struct lw_buffer *buffer, const struct lw_value *status)
{
	static const char *const SHOWN[] = {"workers", "jobs", "layers", "degraded"};
	struct lw_cursor inside = status->inside, after;
	struct lw_value key, value;
	char number[400];

	for (uint32_t i = 0; i < status->entries; i++) {
		struct lw_buffer name = {.limit = SIZE_MAX / 2};
		bool shown = false;

		lw_next(&inside, &key);
		after = inside;
		lw_skip(&after);
		lw_next(&inside, &value);
		inside = after;
		for (int j = 0; j < 4; j++)
			shown = shown || lw_is(&key, SHOWN[j]);
		if (shown)
			continue;
		lw_put(&name, key.data, key.length);
		for (size_t j = 0; !name.no_memory && j < name.length; j++)
			name.data[j] = name.data[j] == '_' ? ' ' : name.data[j];
		if (!name.no_memory)
			put_padded(buffer, name.data, name.length, 13);
		free(name.data);
		if (lw_is(&key, "uptime") && value.type == LW_NUMBER) {
			snprintf(number, sizeof number, "%.1f s", value.number);
			put(buffer, number);
		} else if (lw_is(&key, "uptime") || !put_detail(buffer, &value)) {
			return false;
		}
		put(buffer, "\n");
	}
	return true;
}

/* Write *map* for people, fit for a terminal; false where a value is deeper than this shows. */
bool lw_status_text(struct lw_buffer *buffer, const struct lw_value *map)
{
	struct lw_buffer plain = {.limit = SIZE_MAX / 2};
	struct lw_value degraded;
	bool fits = put_counts(&plain, map, "workers") && put_counts(&plain, map, "jobs") && put_layers(&plain, map);

	put_name(&plain, "degraded");
	if (!lw_find(map, "degraded", &degraded))
		put(&plain, "nothing");
	else
		fits = fits && degraded.type == LW_ARRAY && put_entries(&plain, &degraded, ", ", "nothing");
	put(&plain, "\n");
	fits = fits && put_rest(&plain, map);
	if (fits && !plain.no_memory)
		lw_escape(buffer, plain.data, plain.length);
	free(plain.data);
	return fits && !plain.no_memory;
}
