#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Distinct (arch, nr) pairs that a listener counts separately. The table of calls has
 * about 150 that are refused, and no other number reaches a listener. Further ones
 * are counted together, as LW_OTHER_NR. */
#define LW_SUPERVISOR_KINDS 256
#define LW_OTHER_NR (-1)

/* Most entries that one call gives back. */
#define LW_SUPERVISOR_MOST (LW_SUPERVISOR_KINDS + 1)

/* Jobs at once. */
#define LW_SUPERVISOR_JOBS 32768

/* inotify descriptors of a sandbox, and watches of all of them: the kernel's bounds, which a keeper sets. */
#define LW_WATCH_INSTANCES 8
#define LW_WATCH_WATCHES 8192

struct lw_denied {
	uint64_t job;
	uint64_t count;		/* since the start of the job */
	uint64_t unreported;	/* those of them that weren't drained yet */
	uint32_t arch;		/* AUDIT_ARCH_* */
	int32_t nr;
	uint32_t pid;		/* of the last caller, in the daemon's pid namespace; 0 if it isn't visible there */
};

struct lw_supervisor;

int lw_supervisor_start(struct lw_supervisor **ret_supervisor);
void lw_supervisor_stop(struct lw_supervisor *supervisor);
int lw_supervisor_eventfd(const struct lw_supervisor *supervisor);
int lw_supervisor_add(struct lw_supervisor *supervisor, int fd, uint64_t job, bool quiet, int64_t of, uint32_t *ret_slot);
int lw_supervisor_end_check(struct lw_supervisor *supervisor, uint32_t slot);
int lw_supervisor_counts(struct lw_supervisor *supervisor, uint32_t slot, struct lw_denied *ret_denied,
			 uint32_t *ret_count);
int lw_supervisor_total(struct lw_supervisor *supervisor, uint32_t slot, uint64_t *ret_total);
int lw_supervisor_remove(struct lw_supervisor *supervisor, uint32_t slot, struct lw_denied *ret_denied,
			 uint32_t *ret_count);
int lw_supervisor_grant(struct lw_supervisor *supervisor, uint32_t slot, uint64_t limit, int files);
void lw_supervisor_set_watches(struct lw_supervisor *supervisor, uint64_t most);
bool lw_can_bound_watches(const char *path);
int lw_supervisor_set_watchers(struct lw_supervisor *supervisor, uint32_t most, uint64_t queue);
int lw_supervisor_share(struct lw_supervisor *supervisor, uint32_t slot, uint32_t of);
int lw_supervisor_charged(struct lw_supervisor *supervisor, uint32_t slot, uint64_t *ret_bytes);
int lw_supervisor_drain(struct lw_supervisor *supervisor, struct lw_denied *ret_denied, uint32_t *ret_count);
