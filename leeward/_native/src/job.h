/* A job from its last lock on. See job.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct lw_job {
	int job, reply;
	int lone;		/* the first byte of a frame that is the last one on the job pipe */
	const char *workspace;
	const uint8_t *nothing; /* the reply of a job without error, files and other details */
	uint32_t size;		/* bytes of `nothing` */
	bool last;		/* false for a rehearsal */
};

/* What is the same for every runner. */
struct lw_beginning {
	const uint8_t *ready; /* the message that the runner is ready */
	uint32_t size;
	int birth;            /* the channel on which it is sent; closed afterwards */
	void *renew;          /* a borrowed PyObject, which is called without arguments before that */
};

bool lw_job_begin(const struct lw_beginning *how);
int lw_job_lay(const struct lw_job *given);
int64_t lw_job_take(void);
int64_t lw_job_size(void);
const char *lw_job_taken(void);
void lw_job_leave(void);
void lw_job_watch(void (*left)(void));
