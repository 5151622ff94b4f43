/* A job's two pipes, seen from inside. See job.c. */
#ifndef LW_JOB_H
#define LW_JOB_H

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

int lw_job_lay(const struct lw_job *given);
int64_t lw_job_take(void);
int64_t lw_job_size(void);
const char *lw_job_taken(void);
void lw_job_leave(void);
void lw_job_watch(void (*left)(void));

#endif
