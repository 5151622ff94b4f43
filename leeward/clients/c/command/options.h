/* Made by ./dev generate */
/* The options of `exec` and `ping` that the C command reads: cli/leeward_cli/options.py has all of them, and their help. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Their values; those that aren't given are zero. */
struct lw_given {
	const char *file;
	const char *module;
	double timeout;
	uint64_t memory;
	const char **env;
	size_t env_count;
	const char *label;
	bool from_stdin;
	bool raw;
	const char *socket;
};

/* Name, short name, kind of value, whether ping has it as well, field. */
#define LW_OPTIONS \
	{"--file", "", PATH, false, offsetof(struct lw_given, file)}, \
	{"-m", "", MODULE, false, offsetof(struct lw_given, module)}, \
	{"--timeout", "-t", SECONDS, false, offsetof(struct lw_given, timeout)}, \
	{"--memory", "", SIZE, false, offsetof(struct lw_given, memory)}, \
	{"--env", "", SETTING, false, offsetof(struct lw_given, env)}, \
	{"--label", "", TEXT, false, offsetof(struct lw_given, label)}, \
	{"--stdin", "", FLAG, false, offsetof(struct lw_given, from_stdin)}, \
	{"--raw", "", FLAG, false, offsetof(struct lw_given, raw)}, \
	{"--socket", "-s", PATH, true, offsetof(struct lw_given, socket)},
