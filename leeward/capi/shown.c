#include "shown.h"

#include <stdlib.h>

#include "text.h"

/* The MIME types of displayed forms, and whether they are text. leeward/wire/bundles.py has the same table and bounds. */
static const struct {
	const char *type;
	bool is_text;
} FORMS[] = {
	{"text/plain", true}, {"text/html", true}, {"text/markdown", true}, {"text/latex", true}, {"image/svg+xml", true},
	{"image/png", false}, {"image/jpeg", false}, {"application/pdf", false}, {"application/json", true},
};

#define MAX_SHOWN 64
#define MAX_FORM ((size_t)4 << 20)
#define MAX_FORMS ((size_t)6 << 20)
#define MAX_PLAIN ((size_t)64 << 10)

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Read one form. *left*: bytes that all further forms may have. False if it is malformed. */
static bool read_form(const struct lw_value *type, const struct lw_value *content, size_t *left, leeward_form *ret_form)
{
	for (size_t i = 0; i < COUNT(FORMS); i++) {
		if (!lw_is(type, FORMS[i].type))
			continue;
		if (content->type != (FORMS[i].is_text ? LW_TEXT : LW_BINARY) || content->length > MAX_FORM ||
		    content->length > *left || (!i && lw_utf8_length(content->data, content->length) > MAX_PLAIN))
			return false;
		*left -= content->length;
		*ret_form = (leeward_form){FORMS[i].type, content->data, content->length};
		return true;
	}
	return false;
}

/* Read what the job has displayed: an array of maps, none of them empty.
 *
 * Args:
 *	ret_things, ret_forms: the memory that *result* points into; the caller frees both, also after an error.
 *
 * Returns "", what is wrong, or NULL if there is no memory. */
const char *lw_shown_read(const struct lw_reply *reply, leeward_result *result, leeward_shown **ret_things,
			  leeward_form **ret_forms)
{
	static const char WRONG[] = "a result: what it shows is something else";
	struct lw_value list, value, type, content;
	struct lw_cursor inside;
	size_t count = 0, left = MAX_FORMS;

	lw_find(&reply->ok, "value", &value);
	if (value.type != LW_NIL &&
	    (value.type != LW_TEXT || lw_utf8_length(value.data, value.length) > MAX_PLAIN))
		return WRONG;
	result->value = value.type == LW_TEXT ? (const char *)value.data : NULL;
	if (!lw_find(&reply->ok, "results", &list))
		return "";
	if (list.type != LW_ARRAY || list.entries > MAX_SHOWN)
		return WRONG;
	inside = list.inside;
	for (uint32_t i = 0; i < list.entries; i++) {
		struct lw_cursor after = inside;

		lw_skip(&after);
		lw_next(&inside, &value);
		inside = after;
		if (value.type != LW_MAP || !value.entries)
			return WRONG;
		count += value.entries;
	}
	if (!count)
		return "";
	*ret_things = calloc(list.entries, sizeof **ret_things);
	*ret_forms = calloc(count, sizeof **ret_forms);
	if (!*ret_things || !*ret_forms)
		return NULL;
	count = 0;
	for (uint32_t i = 0; i < list.entries; i++) {
		struct lw_cursor after = list.inside;

		lw_skip(&after);
		lw_next(&list.inside, &value);
		list.inside = after;
		(*ret_things)[i] = (leeward_shown){*ret_forms + count, value.entries};
		for (uint32_t j = 0; j < value.entries; j++) {
			lw_next(&value.inside, &type);
			lw_next(&value.inside, &content);
			if (!read_form(&type, &content, &left, &(*ret_forms)[count++]))
				return WRONG;
			if (content.type == LW_ARRAY || content.type == LW_MAP)
				return WRONG;
		}
	}
	result->shown = *ret_things;
	result->shown_count = list.entries;
	return "";
}
