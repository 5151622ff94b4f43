/* What the files of the supervisor share: supervisor.c, whose head says how it works, supervisor_charges.c, supervisor_ids.c,
 * supervisor_owners.c and supervisor_watches.c. */
#pragma once

#include "supervisor.h"

#include <limits.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* How often a job was refused one system call of one architecture. */
struct lw_refused {
	uint64_t count;
	uint64_t unreported;
	uint32_t arch;
	int32_t nr;
	uint32_t pid;
};

/* What an answer is that lets the kernel execute the call. No result of a call is this number. */
#define LW_GO_ON INT_MAX

/* What is known of a task whose call names a file, and what was opened for it; -1 is nothing. */
struct lw_asker {
	const struct seccomp_notif *request;
	int tgid;
	unsigned int uid, gid;	/* of its accesses to files */
	int root, inotify, object;
	char path[2 * PATH_MAX];
};

/* What one or several listeners are granted together: memory that no resident set shows, and watches. */
struct lw_purse {
	uint64_t limit;
	uint64_t charged;
	uint64_t watches;	/* granted watches of epoll */
	uint64_t others_watches, others_bytes;	/* of these, for descriptors that listeners other than the holder have made */
	uint32_t users;		/* listeners that have this purse */
	uint32_t queues, others_queues;	/* charged inotify descriptors */
	bool watching;		/* it is one of the supervisor's `watchers` */
	int files;		/* the folder of memory files, whose owner closes it; -1 once that has happened */
	struct lw_owners *owners;	/* NULL: no file was given to anybody */
	int64_t since;		/* when it was made, by the clock of files' births; nanoseconds since 1970 */
};

/* A filter's listener: one job. */
struct lw_listener {
	int fd;
	uint64_t job;
	uint64_t filled_ms;	/* when tokens were added last; later than now if it owes some */
	uint32_t tokens;
	uint32_t slot;
	uint32_t generation;
	bool muted;
	bool watched;		/* false once the last task is gone */
	bool quiet;		/* its refusals don't make the eventfd readable until lw_supervisor_end_check */
	bool unreported;
	bool owns_purse;
	struct lw_purse *purse;	/* its sandbox's; NULL only while it is made or has gone */
	uint64_t charged;	/* bytes that this listener has charged to the purse for mappings */
	struct seccomp_notif asked;	/* the call that waits for the watcher, or that it looks at */
	struct lw_refused kinds[LW_SUPERVISOR_KINDS];	/* open addressing; count 0 is free */
	struct lw_refused other;
};

struct lw_supervisor {
	pthread_t thread;
	pthread_mutex_t mutex;
	int epoll;
	int wake;		/* to the thread: look at `stopping` */
	int reports;		/* to Python: drain() has something */
	bool stopping;
	uint32_t muted;		/* the number of muted listeners */
	uint64_t unmute_ms;	/* 0: none is muted */
	uint64_t report_ms;	/* 0: nothing waits to be reported */
	struct seccomp_notif *request;
	struct seccomp_notif_resp *response;
	size_t request_size;
	size_t response_size;
	uint64_t most_watches;	/* watches of epoll that all jobs may have together */
	uint64_t watches;
	uint32_t most_watchers;	/* sandboxes that may use inotify at once; 0: none */
	uint32_t watchers;
	uint32_t owners;	/* rows of all tables of owners */
	uint64_t queue;		/* bytes of the events that an inotify descriptor may keep */
	pthread_t watcher;
	bool has_watcher;
	pthread_cond_t asks;	/* to the watcher: look at `asked` or `stopping` */
	uint64_t asked, taken;	/* tags that were ever put into `asking`, and those that were taken */
	uint64_t asking[LW_SUPERVISOR_JOBS];
	uint32_t top;		/* slots below it may be in use */
	uint32_t generation;
	uint32_t drain_from;	/* the slot where the next drain begins, so that each job gets its turn */
	struct lw_listener *listeners[LW_SUPERVISOR_JOBS];
};

void lw_poke(int eventfd);
void lw_unpoke(int eventfd);
struct lw_listener *lw_in_slot(const struct lw_supervisor *supervisor, uint32_t slot);
bool lw_grant(struct lw_supervisor *supervisor, struct lw_listener *listener);
void lw_count_refusal(struct lw_supervisor *supervisor, struct lw_listener *listener, const struct seccomp_notif *request);
uint64_t lw_tag_of(const struct lw_listener *listener);
struct lw_listener *lw_tagged(const struct lw_supervisor *supervisor, uint64_t tag);
void lw_watch_for(const struct lw_supervisor *supervisor, struct lw_listener *listener, uint32_t events);
void lw_take_time(struct lw_listener *listener, uint64_t us);
bool lw_become(unsigned int uid, unsigned int gid);
void lw_return(bool other);
int lw_start_thread(struct lw_supervisor *supervisor, void *(*body)(void *), const char *name, pthread_t *ret_thread);
bool lw_stop_watcher(struct lw_supervisor *supervisor);
bool lw_ask_later(struct lw_supervisor *supervisor, struct lw_listener *listener);
bool lw_answer_ids(struct lw_supervisor *supervisor, struct lw_listener *listener);
bool lw_answer_owners(struct lw_supervisor *supervisor, struct lw_listener *listener);
void lw_forget_owners(struct lw_supervisor *supervisor, struct lw_purse *purse);
bool lw_is_about_owners(const struct seccomp_notif *request);
int lw_look_at_owner(struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request);
int lw_identify(struct lw_asker *asker);
int lw_file_of(pid_t task, const char *name, int flags);
int lw_copy_path(struct lw_asker *asker, uint64_t from, int folder);
int lw_walk(struct lw_asker *asker, int flags);
bool lw_still_waits(struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request);
uint64_t lw_faults_so_far(void);
bool lw_let_go_on(struct lw_supervisor *supervisor, const struct lw_listener *listener);
bool lw_is_about_ids(const struct seccomp_notif *request);
int lw_tell_ids(const struct seccomp_notif *request, int mem);
void lw_charge_pages(struct lw_listener *listener, uint64_t pages);
int lw_give_purse(struct lw_supervisor *supervisor, struct lw_listener *listener, int64_t of);
void lw_leave_purse(struct lw_supervisor *supervisor, struct lw_listener *listener);
