/* The program `leeward`: the interface between its files.
 *
 * Runs in:   the command line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "calls.h"
#include "leeward.h"
#include "options.h"
#include "wire.h"

/* A parsed command line; all texts point into argv. */
struct lw_line {
	struct lw_given given;
	const char *word; /* the last of them */
	const char **after;
	size_t words, after_count;
};

/* A job's code, input and options, read and checked. */
struct lw_job {
	leeward_options options;
	struct lw_buffer code, input;
	bool has_code;
};

/* Output that was received while the job ran and can't be shown yet: the first bytes of incomplete characters. */
struct lw_shown {
	bool raw;
	uint8_t begun[2][4];
	size_t begun_length[2];
};

int lw_write(int fd, const void *data, size_t length);
void lw_complain(const char *message);
int lw_system_error(int error);
bool lw_line_read(struct lw_line *line, bool is_exec, int count, char **words);
bool lw_job_read(const struct lw_line *line, struct lw_job *ret_job, int *ret_error);
int lw_job_show_live(struct lw_live *live, const struct lw_bytes streams[2]);
int lw_job_show(const leeward_result *result, const struct lw_line *line, const struct lw_live *live);
