/* Made by ./dev generate */
/* Bounds, and words of results by their numbers. */
#pragma once

#include <stdbool.h>

#include "leeward.h"

#define LW_VERSION 1
#define LW_HEADER 4
#define LW_MAX_REQUEST 83886080
#define LW_MAX_REPLY 16777216
#define LW_MAX_DEPTH 32
#define LW_MAX_ENTRIES 4096
#define LW_MAX_VALUES 32768
#define LW_MAX_KEY 4096
#define LW_MAX_ARENAS 4
#define LW_MAX_ARENA 1099511627776
#define LW_MAX_LEFT_OUT 1024
#define LW_MAX_SHOWN 64
#define LW_MAX_FORM 4194304
#define LW_MAX_FORMS 6291456
#define LW_MAX_PLAIN 65536
#define LW_MAX_PATTERN 4096
#define LW_MAX_EDIT 1048576
#define LW_MAX_ROWS 4000
#define LW_MAX_MOUNTS 16
#define LW_LARGE 1048576
#define LW_MAX_SLOTS 64
#define LW_MAX_SLOT 1073741824

static const char *const lw_outcomes[] = {
	[LEEWARD_FINISHED] = "finished",
	[LEEWARD_RAISED] = "raised",
	[LEEWARD_SIGNALLED] = "signalled",
	[LEEWARD_TIMED_OUT] = "timed_out",
	[LEEWARD_OUT_OF_MEMORY] = "out_of_memory",
	[LEEWARD_OUTPUT_LIMIT] = "output_limit",
	[LEEWARD_INTERNAL] = "internal",
};

static const char *const lw_limits[] = {
	[LEEWARD_LIMIT_MEMORY] = "memory",
	[LEEWARD_LIMIT_PROCESSES] = "processes",
	[LEEWARD_LIMIT_FILES] = "files",
	[LEEWARD_LIMIT_DESCRIPTORS] = "descriptors",
	[LEEWARD_LIMIT_OUTPUT] = "output",
	[LEEWARD_LIMIT_TIME] = "time",
	[LEEWARD_LIMIT_CPU] = "cpu",
};

/* The first is unused. */
static const char *const lw_reasons[] = {
	"",
	"no_match",
	"hidden",
	"folder",
	"link",
	"special",
	"unreadable",
	"name",
	"too_large",
	"too_many",
	"ended",
	"more",
};

/* The MIME types of displayed forms, and whether they are text. */
static const struct lw_form {
	const char *type;
	bool is_text;
} lw_forms[] = {
	{"text/plain", true},
	{"text/html", true},
	{"text/markdown", true},
	{"text/latex", true},
	{"image/svg+xml", true},
	{"image/png", false},
	{"image/jpeg", false},
	{"application/pdf", false},
	{"application/json", true},
};
