/* Parses a command line: the options of `exec` and `ping`, and their values.
 *
 * Runs in:   the program `leeward`. cli/leeward_cli/options.py has all options, and their help. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "exec.h"
#include "text.h"

/* What an option's value is, and so the type of its field: the kinds of options.py. */
enum kind {
	FLAG,	 /* none */
	PATH,	 /* any bytes */
	TEXT,	 /* UTF-8 */
	MODULE,	 /* UTF-8; none that begins with a digit */
	SECONDS, /* above 0 */
	SIZE,	 /* bytes, above 0 */
	SETTING, /* NAME=value in UTF-8, one of many */
};

static const struct option {
	const char *name, *brief; /* -t, or "" */
	enum kind kind;
	bool of_ping; /* it is an option of ping as well */
	size_t field;
} OPTIONS[] = {LW_OPTIONS};

#define COUNT (sizeof OPTIONS / sizeof *OPTIONS)

static bool is_utf8(const char *text)
{
	return lw_utf8_valid((const uint8_t *)text, strlen(text));
}

/* Read a decimal number of seconds; other forms of Python's float are left to the Python command line. */
static bool read_seconds(const char *text, double *ret_seconds)
{
	char *end;

	if (!*text || text[strspn(text, "0123456789.")])
		return false;
	*ret_seconds = strtod(text, &end); /* this program sets no locale */
	return !*end && *ret_seconds > 0 && isfinite(*ret_seconds);
}

/* Read a size such as 64M, as leeward/spec/sizes.py does; fractions are left to the Python command line. */
static bool read_size(const char *text, uint64_t *ret_size)
{
	static const struct {
		const char *name;
		uint64_t size;
	} UNITS[] = {
		{"", 1}, {"B", 1}, {"K", (uint64_t)1 << 10}, {"M", (uint64_t)1 << 20}, {"G", (uint64_t)1 << 30},
		{"T", (uint64_t)1 << 40}, {"KiB", (uint64_t)1 << 10}, {"MiB", (uint64_t)1 << 20},
		{"GiB", (uint64_t)1 << 30}, {"TiB", (uint64_t)1 << 40}, {"KB", 1000}, {"MB", 1000000},
		{"GB", 1000000000}, {"TB", 1000000000000},
	};
	size_t digits = strspn(text, "0123456789");
	uint64_t number = 0;

	if (!digits || digits > 18)
		return false;
	for (size_t i = 0; i < digits; i++)
		number = number * 10 + (uint64_t)(text[i] - '0');
	for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++)
		if (!strcasecmp(text + digits, UNITS[i].name))
			/* 0 is left to the Python command line: in our options it would mean the default. */
			return number && !__builtin_mul_overflow(number, UNITS[i].size, ret_size);
	return false;
}

/* Store *value* in the option's field. False if this program can't read it. */
static bool store(struct lw_line *line, const struct option *option, const char *value)
{
	void *field = (char *)&line->given + option->field;

	switch (option->kind) {
	case FLAG:
		*(bool *)field = true;
		return true;
	case PATH:
		*(const char **)field = value;
		return true;
	case TEXT:
		*(const char **)field = value;
		return is_utf8(value);
	case MODULE:
		*(const char **)field = value;
		return is_utf8(value) && !(value[0] >= '0' && value[0] <= '9');
	case SECONDS:
		return read_seconds(value, field);
	case SIZE:
		return read_size(value, field);
	case SETTING:
		line->given.env[line->given.env_count++] = value;
		return value[0] != '=' && strchr(value, '=') && is_utf8(value);
	}
	return false;
}

static bool is_named(const char *name, const char *word, size_t length)
{
	return strlen(name) == length && !memcmp(name, word, length);
}

/* The option whose name is the first *length* bytes of *word*; NULL if the command has no such option. */
static const struct option *find(const char *word, size_t length, bool is_exec)
{
	for (size_t i = 0; i < COUNT; i++)
		if ((is_named(OPTIONS[i].name, word, length) || is_named(OPTIONS[i].brief, word, length)) &&
		    (is_exec || OPTIONS[i].of_ping))
			return &OPTIONS[i];
	return NULL;
}

/* Parse the words after `exec` or `ping`.
 *
 * Args:
 *	line: all zero, with room for *count* settings in `given.env`.
 *
 * Returns false if the Python command line has to do it: the line is wrong, or asks for something that this program
 * doesn't do. */
bool lw_line_read(struct lw_line *line, bool is_exec, int count, char **words)
{
	bool seen[COUNT] = {false};
	int end = 0;

	while (end < count && strcmp(words[end], "--"))
		end++;
	if (end < count) {
		line->after = (const char **)words + end + 1;
		line->after_count = (size_t)(count - end - 1);
	}
	for (int i = 0; i < end; i++) {
		const char *word = words[i], *equals = strchr(word, '='), *value = NULL;
		const struct option *option;

		if (word[0] != '-' || !word[1]) {
			line->word = word;
			line->words++;
			continue;
		}
		option = find(word, equals ? (size_t)(equals - word) : strlen(word), is_exec);
		if (!option || (option->kind != SETTING && seen[option - OPTIONS]) ||
		    (option->kind == FLAG ? equals != NULL : !equals && i + 1 == end))
			return false;
		seen[option - OPTIONS] = true;
		if (option->kind != FLAG)
			value = equals ? equals + 1 : words[++i];
		if (!store(line, option, value))
			return false;
	}
	for (size_t i = 0; i < line->after_count; i++)
		if (!is_utf8(line->after[i]))
			return false;
	return is_exec || (!line->words && !line->after_count);
}
