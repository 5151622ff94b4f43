/* What a job has used where no controller counts it: the fast path's part of isolation/cgroup/watch.py.
 *
 * Runs in:  the daemon, inside a turn of its loop.
 * Trust:    none in the job. The files are the kernel's; their descriptors stay with the processes that they were opened for.
 *
 * Only what takes no history is counted here: a job of one task that has no child, as the only child of its init. Its memory
 * is the smaller of its resident pages and its faults. For everything else the answer is -EAGAIN: Python looks then, and its
 * look at a whole sandbox begins with `lw_watch_tree`, which only tells what is there.
 *
 * /proc/PID/status takes the kernel longer than a short job takes. So the pages of the last look count while fewer than
 * FEW_FAULTS came since and the job ran for less than BRIEF_NS, unless what it can have had since could reach the limit; a
 * control group counts in batches, too. */

#include "fast_path.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define FEW_FAULTS 64
/* Pages that a fault can take at most: its own, and the tables above it. */
#define PAGES_OF_A_FAULT 4
/* mremap(2) makes page tables without a fault: up to 2.7 bytes a nanosecond were measured (Linux 6.18). */
#define BRIEF_NS 250000
#define TABLES_PER_NS 4
/* <linux/posix-timers_types.h>: of a clock id made of a pid, the time that the scheduler gave to all of its threads */
#define CPUCLOCK_SCHED 2
#define TEXT 2048

static ssize_t content(int fd, char text[TEXT + 1])
{
	ssize_t size = pread(fd, text, TEXT, 0);

	if (size < 0)
		return -errno;
	text[size] = 0;
	return size;
}

/* The fields of /proc/PID/stat from the third on, by their index in watch.py. */
enum { STATE, PARENT, MINOR = 7, MAJOR = 9, WAITED_USER = 13, WAITED_SYSTEM = 14, TASKS = 17, STARTED = 19, MAPPED, PAGES, FIELDS };

static int parse_stat(const char *text, uint64_t fields[FIELDS])
{
	char *at = strrchr(text, ')');

	if (!at || at[1] != ' ' || !at[2])
		return -EAGAIN;
	fields[STATE] = (unsigned char)at[2]; /* a letter */
	at += 3;
	for (int field = 1; field < FIELDS; field++)
		fields[field] = strtoull(at, &at, 10);
	return 0;
}

static int read_stat(int fd, uint64_t fields[FIELDS])
{
	char text[TEXT + 1];

	return content(fd, text) <= 0 ? -EAGAIN : parse_stat(text, fields);
}

/* The kibibytes behind this name in a process's status; 0 without it. */
static uint64_t line_of(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

/* The memory in a process's status. 0, or -EAGAIN: one that has ended has none, and one of many groups has it further behind. */
static int read_status(int fd, char text[TEXT + 1])
{
	const ssize_t size = content(fd, text);

	return size <= 0 || size == TEXT || !strstr(text, "\nRssAnon:") ? -EAGAIN : 0;
}

static uint64_t anonymous(const char *text)
{
	return (line_of(text, "\nRssAnon:") + line_of(text, "\nVmSwap:")) << 10;
}

static int look_at_pages(struct lw_watch *watch, uint64_t before, uint64_t spent)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), fields[FIELDS], touched;
	char text[TEXT + 1];

	if (read_status(watch->status, text) || read_stat(watch->stat, fields))
		return -EAGAIN;
	watch->resident = anonymous(text);
	watch->faults = before;
	watch->late = fields[MINOR] + fields[MAJOR] - before;
	watch->spent = spent;
	touched = (before + watch->late) * page;
	watch->pages = (watch->resident < touched ? watch->resident : touched) + (line_of(text, "\nVmPTE:") << 10);
	return 0;
}

/* The job's processor time in nanoseconds, by its number: it is the job's if its files can be read afterwards. */
static int read_clock(int job, uint64_t *ret_spent)
{
	struct timespec spent;

	if (clock_gettime((clockid_t)(~(uint32_t)job << 3 | CPUCLOCK_SCHED), &spent))
		return -EAGAIN;
	*ret_spent = (uint64_t)spent.tv_sec * 1000000000 + (uint64_t)spent.tv_nsec;
	return 0;
}

/* The file `name` of the process whose folder this is. A descriptor, or -1. */
static int file_of(int folder, const char *name)
{
	return openat(folder, name, O_RDONLY | O_CLOEXEC);
}

static int folder_of(int process, char ret_children[40])
{
	char path[24];

	snprintf(path, sizeof(path), "/proc/%d", process);
	snprintf(ret_children, 40, "task/%d/children", process);
	return open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Look at the only child of an armed runner's init. */
static int look_first(int init, int folders[2], struct lw_first *first)
{
	uint64_t fields[FIELDS] = { 0 };
	char text[TEXT + 1], children[40], *end;
	int stat;

	if ((folders[0] = folder_of(init, children)) < 0 || (first->orphans = file_of(folders[0], children)) < 0 ||
	    (stat = file_of(folders[0], "stat")) < 0)
		return -EAGAIN;
	const int failed = read_stat(stat, fields);
	close(stat);
	first->init_started = fields[STARTED];
	first->gone = fields[WAITED_USER] + fields[WAITED_SYSTEM];
	if (failed || content(first->orphans, text) <= 0)
		return -EAGAIN;
	first->job = (int)strtoul(text, &end, 10);
	if (*end != ' ' || end[1] || (folders[1] = folder_of(first->job, children)) < 0 ||
	    (first->children = file_of(folders[1], children)) < 0 || (first->stat = file_of(folders[1], "stat")) < 0 ||
	    (first->status = file_of(folders[1], "status")) < 0)
		return -EAGAIN;
	/* The clock is found by the number, so it comes before files of the folder, which show that the process had it. */
	if (read_clock(first->job, &first->spent) || read_stat(first->stat, fields))
		return -EAGAIN;
	first->late = fields[MINOR] + fields[MAJOR];
	if (read_status(first->status, text) || read_stat(first->stat, fields))
		return -EAGAIN;
	first->started = fields[STARTED];
	first->faults = fields[MINOR] + fields[MAJOR];
	first->late = first->faults - first->late;
	first->resident = anonymous(text);
	first->tables = line_of(text, "\nVmPTE:") << 10;
	first->shared = line_of(text, "\nRssShmem:") << 10;
	if (fields[PARENT] != (uint64_t)init || fields[TASKS] != 1 || fields[WAITED_USER] || fields[WAITED_SYSTEM])
		return -EAGAIN;
	return content(first->children, text) ? -EAGAIN : 0;
}

/* Look at an armed runner for the first time, and open the files for later looks, the caller's. Returns 0, or -EAGAIN if it
 * takes a whole look; then nothing is open. */
int lw_watch_first(int init, struct lw_first *ret_first)
{
	int folders[2] = { -1, -1 };

	*ret_first = (struct lw_first){ .orphans = -1, .children = -1, .stat = -1, .status = -1 };
	const int failed = look_first(init, folders, ret_first);
	const int fds[] = { folders[0], folders[1], ret_first->orphans, ret_first->children, ret_first->stat,
			    ret_first->status };

	for (size_t i = 0; i < (failed ? sizeof(fds) / sizeof(*fds) : 2); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	return failed;
}

/* Count the job's memory; `charged` is what the supervisor has charged. Returns 0 if it is within its limit, and then `memory`,
 * `peak` and `time` hold; -EAGAIN if Python has to look. */
int lw_watch_look(struct lw_watch *watch, uint64_t charged)
{
	uint64_t fields[FIELDS], faults, memory, sockets, spent,
		most = FEW_FAULTS * PAGES_OF_A_FAULT * (uint64_t)sysconf(_SC_PAGESIZE) + BRIEF_NS * TABLES_PER_NS;
	struct statvfs files;
	char text[TEXT + 1], *end;

	if (content(watch->orphans, text) <= 0 || strtoull(text, &end, 10) != (uint64_t)watch->job || *end != ' ' || end[1])
		return -EAGAIN;
	if (read_clock(watch->job, &spent) || content(watch->children, text) || read_stat(watch->stat, fields) || fields[TASKS] != 1 ||
	    fields[WAITED_USER] + fields[WAITED_SYSTEM] != watch->waited)
		return -EAGAIN;
	/* "sockets: used N\nTCP: inuse N orphan N tw N alloc N mem N" */
	if (content(watch->sockets, text) <= 0 || strncmp(text, "sockets: used ", 14))
		return -EAGAIN;
	sockets = strtoull(text + 14, NULL, 10);
	end = strstr(text, " tw ");
	sockets += end ? strtoull(end + 4, NULL, 10) : 0;
	sockets -= sockets < watch->free_sockets ? sockets : watch->free_sockets;
	if (fstatvfs(watch->files, &files))
		return -EAGAIN;
	memory = charged + sockets * watch->socket + (files.f_blocks - files.f_bfree) * files.f_frsize +
		 (files.f_files - files.f_ffree) * watch->inode;
	faults = fields[MINOR] + fields[MAJOR];
	if ((faults - watch->faults >= FEW_FAULTS || spent - watch->spent >= BRIEF_NS ||
	     memory + watch->pages + most > watch->limit) && look_at_pages(watch, faults, spent))
		return -EAGAIN;
	memory += watch->pages;
	if (memory > watch->limit)
		return -EAGAIN;
	watch->memory = memory;
	watch->time = spent;
	watch->peak = memory > watch->peak ? memory : watch->peak;
	return 0;
}

/* The file `name` of the process whose folder this is, as text. Returns its size, or -errno: -EAGAIN if there may be more. */
static ssize_t content_of(int folder, const char *name, char text[TEXT + 1])
{
	const int fd = file_of(folder, name);

	if (fd < 0)
		return -errno;
	const ssize_t size = content(fd, text);
	close(fd);
	return size == TEXT ? -EAGAIN : size;
}

/* A process that a look has still to see: `started` is that of a root, 0 for others. */
struct waiting {
	int pid, parent;
	uint64_t started;
};

struct walk {
	struct lw_tree found;
	struct waiting waiting[LW_TREE_MOST];
	uint32_t asked; /* how many of them there are */
	int init;
	bool runs; /* one of those that were found */
};

static int ask(struct walk *walk, struct waiting process)
{
	if (walk->asked == LW_TREE_MOST)
		return -EAGAIN;
	walk->waiting[walk->asked++] = process;
	return 0;
}

static int ask_for_children(struct walk *walk, int folder, const char *children, int parent)
{
	char text[TEXT + 1], *end;
	const ssize_t size = content_of(folder, children, text);
	int failed = size < 0 ? (int)size : 0;

	for (char *at = text; !failed && at < text + size; at = end) {
		const int pid = (int)strtoul(at, &end, 10);

		if (*end++ != ' ')
			return -EAGAIN;
		failed = ask(walk, (struct waiting){ .pid = pid, .parent = parent });
	}
	return failed;
}

/* Whether these are the fields of a process of the sandbox's: a root, or a child of one that was found. */
static bool is_its(const struct walk *walk, uint64_t root_started, const uint64_t fields[FIELDS])
{
	if (root_started)
		return fields[STARTED] == root_started;
	bool found = fields[PARENT] == (uint64_t)walk->init;
	for (uint32_t i = 0; i < walk->found.count; i++)
		found |= fields[PARENT] == (uint64_t)walk->found.processes[i].pid;
	return found;
}

/* Add what a process tells without its memory. Returns 0 or -errno. */
static int see(struct walk *walk, const struct waiting *next, int folder, const char *children)
{
	struct lw_process process = { .pid = next->pid, .parent = next->parent };
	uint64_t fields[FIELDS];
	char text[TEXT + 1];
	const ssize_t size = content_of(folder, "stat", text);

	if (size <= 0)
		return size ? (int)size : -EAGAIN;
	if (parse_stat(text, fields))
		return -EAGAIN;
	if (!is_its(walk, next->started, fields))
		return -ESRCH;
	/* The clock lacks what a process that runs has used since the kernel's last tick. So it is read behind the state: of one
	 * that didn't run then, it has all until then. The folder's next file shows that the process had the number. */
	if (fields[TASKS] != 1 || read_clock(next->pid, &process.spent))
		return -EAGAIN;
	process.started = fields[STARTED];
	process.faults = fields[MINOR] + fields[MAJOR];
	process.mapped = fields[MAPPED];
	process.pages = fields[PAGES];
	const int failed = ask_for_children(walk, folder, children, (int)walk->found.count);
	if (failed)
		return failed;
	walk->runs |= fields[STATE] == 'R';
	walk->found.processes[walk->found.count++] = process;
	return 0;
}

/* A process that has gone is left out. */
static int visit(struct walk *walk, const struct waiting *next)
{
	char children[40];
	const int folder = folder_of(next->pid, children), failed = folder < 0 ? -errno : see(walk, next, folder, children);

	if (folder >= 0)
		close(folder);
	return failed == -ENOENT || failed == -ESRCH ? 0 : failed;
}

/* Times that the memory of a process is read, at most, while it touches pages. */
#define TRIES 3

static int see_memory(const struct walk *walk, uint64_t root_started, struct lw_process *process, int folder)
{
	uint64_t fields[FIELDS];
	char text[TEXT + 1];

	process->late = 1;
	for (int tries = 0; process->late && tries < TRIES; tries++) {
		const uint64_t before = process->faults;

		if (content_of(folder, "status", text) <= 0)
			return -EAGAIN;
		process->resident = anonymous(text); /* one that has ended has none */
		process->tables = line_of(text, "\nVmPTE:") << 10;
		process->shared = line_of(text, "\nRssShmem:") << 10;
		if (content_of(folder, "stat", text) <= 0 || parse_stat(text, fields))
			return -EAGAIN;
		if (fields[STARTED] != process->started || fields[TASKS] != 1 || !is_its(walk, root_started, fields))
			return -EAGAIN;
		process->faults = fields[MINOR] + fields[MAJOR];
		process->late = process->faults - before;
		process->waited = fields[WAITED_USER] + fields[WAITED_SYSTEM];
	}
	return 0;
}

static int visit_for_memory(const struct walk *walk, struct lw_process *process)
{
	char children[40];
	uint64_t root_started = 0;
	const int folder = folder_of(process->pid, children);

	for (uint32_t i = 0; i < walk->asked; i++)
		if (walk->waiting[i].pid == process->pid)
			root_started = walk->waiting[i].started;
	const int failed = folder < 0 ? -EAGAIN : see_memory(walk, root_started, process, folder);
	if (folder >= 0)
		close(folder);
	return failed;
}

/* Whether nothing has changed since that look: who is there, and what each of them has used. */
static bool is_still(const struct lw_tree *found, const struct lw_tree *before)
{
	bool same = found->count == before->count;

	for (uint32_t i = 0; same && i < found->count; i++) {
		const struct lw_process *now = &found->processes[i], *then = &before->processes[i];

		same = now->pid == then->pid && now->started == then->started && now->spent == then->spent &&
		       now->faults == then->faults && now->mapped == then->mapped && now->pages == then->pages;
	}
	return same;
}

static int begin_walk(struct walk *walk, const struct lw_root *roots, uint32_t count)
{
	uint64_t fields[FIELDS];
	char text[TEXT + 1], children[40];
	const int folder = folder_of(roots->pid, children);
	int failed = folder < 0 || content_of(folder, "stat", text) <= 0 || parse_stat(text, fields) ||
		     fields[STARTED] != roots->started || ask_for_children(walk, folder, children, -1) ? -EAGAIN : 0;

	if (folder >= 0)
		close(folder);
	if (!failed)
		walk->found.gone = fields[WAITED_USER] + fields[WAITED_SYSTEM];
	walk->init = roots->pid;
	for (uint32_t i = 1; !failed && i < count; i++)
		failed = ask(walk, (struct waiting){ .pid = roots[i].pid, .parent = -1, .started = roots[i].started });
	return failed;
}

/* Look at the processes of a sandbox, as watch.look does: the first of the `roots` is its init, the others are processes beside
 * its first one. `tree` is that of the look before, or empty. Where none of them has run since, their memory isn't read again,
 * which is half of the time. Returns 0; 1 if `tree` holds as it was; -EAGAIN if Python has to look, and then it is empty. */
int lw_watch_tree(struct lw_tree *tree, const struct lw_root *roots, uint32_t count)
{
	struct walk walk = { .asked = 0 };
	int failed = begin_walk(&walk, roots, count);

	for (uint32_t next = 0; !failed && next < walk.asked; next++)
		failed = visit(&walk, &walk.waiting[next]);
	if (!failed && !walk.runs && is_still(&walk.found, tree)) {
		tree->gone = walk.found.gone;
		return 1;
	}
	for (uint32_t i = 0; !failed && i < walk.found.count; i++)
		failed = visit_for_memory(&walk, &walk.found.processes[i]);
	if (failed)
		walk.found.count = 0;
	*tree = walk.found;
	return failed ? -EAGAIN : 0;
}

static int set(pid_t task, __rlimit_resource_t kind, const uint64_t values[2])
{
	struct rlimit limit = { .rlim_cur = values[0], .rlim_max = values[1] };

	return prlimit(task, kind, &limit, NULL) ? -errno : 0;
}

/* Set the limits of a fresh job before it has code. Returns 0 or -errno. While its init lives, which alone reaps it, its pid
 * is the job's: run/runner.py. */
int lw_watch_begin(const struct lw_watch *watch)
{
	struct pollfd init = { .fd = watch->pidfd, .events = POLLIN };
	int failed = poll(&init, 1, 0) ? -ESRCH : set(watch->job, RLIMIT_NPROC, watch->tasks);

	return failed ? failed : set(watch->job, RLIMIT_DATA, watch->data);
}
