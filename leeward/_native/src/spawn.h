/* Making processes: keepers by clone3, runners as an init and a job, programs in namespaces of their own. See spawn.c; for
 * a kernel's branches branch.c. */
#pragma once

#include <linux/sched.h>
#include <stddef.h>
#include <stdint.h>

/* Descriptors of a branch: its door, and its pipes for jobs and replies, which a program doesn't inherit; then its streams. */
#define LW_BRANCH_ENDS 5
#define LW_BRANCH_PIPES 3

struct lw_step;
struct lw_init;
struct rusage;

struct lw_runner {
	uint64_t flags;                   /* CLONE_NEW* of the init; the job inherits the namespaces */
	int cgroup;                       /* the job's cgroup directory, for CLONE_INTO_CGROUP; or -1 */
	const int *attach;                /* open tasks files (cgroup v1), which the job joins */
	uint32_t attach_count;
	int ruleset;                      /* Landlock ruleset that the init enters, or -1 */
	const void *filter;               /* struct sock_filter[]: what the init may call */
	uint16_t filter_count;
	const char *const *folders;       /* where jobs write, the first with mode 755, the others with 1777: all of one tmpfs */
	uint32_t folder_count;            /* 0: no namespaces are kept */
};

/* What libc's fork(2) sees to for the new thread: its id, and its robust mutexes. */
struct lw_thread {
	void *tid_address, *robust;
	size_t robust_size;
};

/* A child that executes steps on a stack of its own, in the caller's memory. Python makes it. */
struct lw_start {
	uint32_t done;         /* written by the child: how many steps had an allowed result */
	int64_t result;        /* written by the child: the result of the next one */
	const struct lw_step *steps;
	uint32_t count;
	unsigned char stack[16384];
};

int lw_thread_now(struct lw_thread *ret);
void lw_reborn(const struct lw_thread *thread);
void lw_before_fork(void);
void lw_after_fork_parent(void);
void lw_after_fork_child(void);
int lw_start(struct lw_start *start, uint64_t flags, const struct lw_step *steps, uint32_t count, int *ret_pidfd);
int lw_clone(uint64_t flags, int cgroup, int *ret_pidfd);
int64_t lw_run_steps_aside(uint64_t flags, const struct lw_step *steps, uint32_t count, int64_t *ret_result);
struct lw_init *lw_init_new(void);
void lw_init_free(struct lw_init *init);
int lw_init_join_error(const struct lw_init *init);
int lw_init_status(const struct lw_init *init, int *ret_status);
uint64_t lw_init_spent_us(const struct lw_init *init);
uint64_t lw_init_largest(const struct lw_init *init);
int lw_init_stay(struct lw_init *init, const struct lw_runner *how, int *ret_pid, int *ret_pidfd);
int lw_init_alone(struct lw_init *init);
uint64_t lw_largest(const struct rusage *used, uint64_t page);
int lw_spawn_runner(struct lw_init *init, const struct lw_runner *how, int *ret_pidfd);
int lw_branch(const int *ends, const int *places, uint8_t word);
