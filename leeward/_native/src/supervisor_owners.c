/* The owners of files where an image's user is root and its profile shows them: whom a file was given to, and no more.
 *
 * Runs in:  the daemon; lw_answer_owners on the supervisor's thread, lw_look_at_owner on the one that may wait for a disk.
 *
 * Theory of operation. The kernel gives no file to an id that the sandbox hasn't. So chown(2) and its like are answered as
 * done, and what was asked for stands in a table of the sandbox's, by the file's device and inode. stat(2) and its like come
 * here too (isolation/seccomp/widen_owners.py). While no file was given away they go on at once. Later the file is looked up
 * as for a watch (supervisor_watches.c): one that isn't in the table goes on as well; of one that is the supervisor writes
 * what the kernel says of it into the task's memory, with the other owner.
 *
 * ext4 and others give a new file the inode of one that is gone: so a row has its file's birth, and isn't that of a file with
 * another one. An overlay that copies a layer's file up keeps its inode and not its birth. Of such a file the row has none: as
 * long as the layer is there, nobody gets that inode.
 *
 * A task that changes its memory or its names meanwhile is told of another file. It could have asked for that one, and who
 * may do what with a file is decided by the kernel's owner alone. */

#include "supervisor_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Rows of a table at first, and at most: 3 MiB, of which three quarters are used. Further files can't be given away. All
 * tables together have 48 MiB, of which each may have as much as it leaves to the others. */
#define FIRST (1U << 8)
#define MOST (1U << 17)
#define ALL (1U << 21)
#define KEEP UINT32_MAX

#define OVERLAY_MAGIC 0x794c7630UL	/* <linux/magic.h> */

struct row {
	uint64_t inode;		/* 0 is a free row: no file has this inode */
	uint32_t device, birth;	/* a folded time; 0 goes for any */
	uint32_t uid, gid;
};

/* What the kernel says of a file. */
struct file {
	uint64_t inode;
	int64_t born;		/* nanoseconds since 1970; 0 where the file system doesn't tell */
	uint32_t device;
	bool in_overlay;	/* is told where a file is given away */
};

struct lw_owners {
	uint32_t room, used;
	struct row rows[];
};

/* What a call asks: about which file, and what of it. */
struct question {
	bool gives, is_statx;
	int at, flags;		/* a descriptor or AT_FDCWD; AT_SYMLINK_NOFOLLOW and AT_EMPTY_PATH are heeded */
	uint64_t path, into;	/* addresses; no path: the descriptor itself */
	uint32_t uid, gid, mask;
};

static bool ask(const struct seccomp_data *call, struct question *q)
{
	const __u64 *args = call->args;
	const int at = (int)args[0];

	memset(q, 0, sizeof(*q));
	switch (call->nr) {
	case SYS_fchown:
		*q = (struct question){ .gives = true, .at = at, .flags = AT_EMPTY_PATH, .uid = (uint32_t)args[1],
					.gid = (uint32_t)args[2] };
		return true;
	case SYS_fchownat:
		*q = (struct question){ .gives = true, .at = at, .path = args[1], .uid = (uint32_t)args[2],
					.gid = (uint32_t)args[3], .flags = (int)args[4] };
		return true;
	case SYS_fstat:
		*q = (struct question){ .at = at, .flags = AT_EMPTY_PATH, .into = args[1] };
		return true;
	case SYS_newfstatat:
		*q = (struct question){ .at = at, .path = args[1], .into = args[2], .flags = (int)args[3] };
		return true;
	case SYS_statx:
		*q = (struct question){ .is_statx = true, .at = at, .path = args[1], .flags = (int)args[2],
					.mask = (uint32_t)args[3], .into = args[4] };
		return true;
#ifdef SYS_chown
	case SYS_chown:
	case SYS_lchown:
		*q = (struct question){ .gives = true, .at = AT_FDCWD, .path = args[0], .uid = (uint32_t)args[1],
					.gid = (uint32_t)args[2], .flags = call->nr == SYS_lchown ? AT_SYMLINK_NOFOLLOW : 0 };
		return true;
	case SYS_stat:
	case SYS_lstat:
		*q = (struct question){ .at = AT_FDCWD, .path = args[0], .into = args[1],
					.flags = call->nr == SYS_lstat ? AT_SYMLINK_NOFOLLOW : 0 };
		return true;
#endif
	default:
		return false;
	}
}

bool lw_is_about_owners(const struct seccomp_notif *request)
{
	struct question q;

	return ask(&request->data, &q);
}

/* Answer supervisor->request if it is about owners; or have the other thread answer. */
bool lw_answer_owners(struct lw_supervisor *supervisor, struct lw_listener *listener)
{
	struct question q;

	if (!ask(&supervisor->request->data, &q))
		return false;
	if ((q.gives || listener->purse->owners) && lw_ask_later(supervisor, listener))
		return true;
	if (!q.gives)
		return lw_let_go_on(supervisor, listener) || true;	/* else its task has died */
	while (ioctl(listener->fd, SECCOMP_IOCTL_NOTIF_SEND, supervisor->response) && errno == EINTR)
		;
	return true;
}

/* The row of the file, or the free one where it belongs. */
static struct row *row_of(struct lw_owners *owners, uint32_t device, uint64_t inode)
{
	uint64_t at = (inode ^ (uint64_t)device << 32) * 0x9e3779b97f4a7c15ULL >> 32;

	for (;; at++) {
		struct row *row = &owners->rows[at & (owners->room - 1)];

		if (!row->inode || (row->inode == inode && row->device == device))
			return row;
	}
}

/* A table with more room and the same rows; NULL where there is no memory, or it has as much as it may. */
static struct lw_owners *enlarged(struct lw_supervisor *supervisor, const struct lw_owners *owners)
{
	const uint32_t room = owners ? 2 * owners->room : FIRST, most = ALL - supervisor->owners;
	struct lw_owners *made = room > MOST || room > most ? NULL : calloc(1, sizeof(*made) + room * sizeof(*made->rows));

	if (!made)
		return NULL;
	supervisor->owners += room - (owners ? owners->room : 0);
	made->room = room;
	for (uint32_t at = 0; owners && at < owners->room; at++)
		if (owners->rows[at].inode) {
			*row_of(made, owners->rows[at].device, owners->rows[at].inode) = owners->rows[at];
			made->used++;
		}
	return made;
}

void lw_forget_owners(struct lw_supervisor *supervisor, struct lw_purse *purse)
{
	if (purse->owners)
		supervisor->owners -= purse->owners->room;
	free(purse->owners);
	purse->owners = NULL;
}

static uint32_t birth_of(const struct file *file)
{
	const uint32_t folded = (uint32_t)((uint64_t)file->born * 0x9e3779b97f4a7c15ULL >> 32);

	return !file->born ? 0 : folded ? folded : 1;
}

/* Whether it is the row of a file that is gone. */
static bool is_outlived(const struct row *row, const struct file *file)
{
	const uint32_t birth = birth_of(file);

	return row->birth && birth && row->birth != birth;
}

static void give(struct lw_supervisor *supervisor, struct lw_purse *purse, const struct file *file, const struct question *q)
{
	struct row *row = purse->owners ? row_of(purse->owners, file->device, file->inode) : NULL;
	const bool may_be_copied_up = file->in_overlay && file->born < purse->since;
	const struct row fresh = { .inode = file->inode, .device = file->device, .birth = may_be_copied_up ? 0 : birth_of(file) };
	struct lw_owners *more;

	if (!row || !row->inode) {
		/* Programs that unpack archives give root each file, which would take all room. */
		if ((!q->uid || q->uid == KEEP) && (!q->gid || q->gid == KEEP))
			return;
		if (!row || purse->owners->used >= purse->owners->room / 4 * 3) {
			more = enlarged(supervisor, purse->owners);
			if (!more)
				return;	/* it is root's, as it was */
			free(purse->owners);
			purse->owners = more;
			row = row_of(more, file->device, file->inode);
		}
		purse->owners->used++;
		*row = fresh;
	} else if (is_outlived(row, file)) {
		*row = fresh;
	}
	if (q->uid != KEEP)
		row->uid = q->uid;
	if (q->gid != KEEP)
		row->gid = q->gid;
}

/* Give the file, or find whom it was given to. Returns 0, or LW_GO_ON if it was given to nobody. */
static int look_up(struct lw_supervisor *supervisor, uint64_t tag, const struct question *q, const struct file *file,
		   struct row *found)
{
	struct lw_listener *listener;
	int result = q->gives ? 0 : LW_GO_ON;

	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_tagged(supervisor, tag);
	if (listener && q->gives && file->inode)
		give(supervisor, listener->purse, file, q);
	else if (listener && listener->purse->owners && !q->gives && file->inode) {
		*found = *row_of(listener->purse->owners, file->device, file->inode);
		if (found->inode && !is_outlived(found, file))
			result = 0;
	}
	pthread_mutex_unlock(&supervisor->mutex);
	return result;
}

/* Write what the kernel says of the object, with the owner of the row, into the task's memory. */
static int tell(struct lw_supervisor *supervisor, uint64_t tag, const struct question *q, int object, const struct row *row,
		int mem)
{
	const uint64_t before = lw_faults_so_far();
	union {
		struct stat stat;
		struct statx statx;
	} about;
	const size_t size = q->is_statx ? sizeof(about.statx) : sizeof(about.stat);
	struct lw_listener *listener;
	bool written;

	memset(&about, 0, sizeof(about));
	if (q->is_statx) {
		if (syscall(SYS_statx, object, "", (q->flags & ~AT_SYMLINK_NOFOLLOW) | AT_EMPTY_PATH, q->mask, &about.statx))
			return -errno;
		about.statx.stx_uid = row->uid;
		about.statx.stx_gid = row->gid;
	} else {
		if (syscall(SYS_newfstatat, object, "", &about.stat, AT_EMPTY_PATH))
			return -errno;
		about.stat.st_uid = row->uid;
		about.stat.st_gid = row->gid;
	}
	written = pwrite(mem, &about, size, (off_t)q->into) == (ssize_t)size;
	pthread_mutex_lock(&supervisor->mutex);
	listener = lw_tagged(supervisor, tag);
	if (listener)
		lw_charge_pages(listener, lw_faults_so_far() - before);
	pthread_mutex_unlock(&supervisor->mutex);
	return written ? 0 : -EFAULT;
}

/* The object that the call names; 0 or -errno. */
static int find(struct lw_supervisor *supervisor, uint64_t tag, struct lw_asker *asker, const struct question *q)
{
	const pid_t task = (pid_t)asker->request->pid;
	bool other, itself = q->flags & AT_EMPTY_PATH && !q->path;
	char name[32] = "cwd";
	int result = itself ? 0 : lw_copy_path(asker, q->path, q->at);

	if (result == -ENOENT && q->flags & AT_EMPTY_PATH)
		itself = true;
	else if (result)
		return result;
	if (itself) {
		if (q->at != AT_FDCWD)
			snprintf(name, sizeof(name), "fd/%d", q->at);
		asker->object = lw_file_of(task, name, O_PATH);
		return asker->object < 0 ? asker->object : lw_still_waits(supervisor, tag, asker->request) ? 0 : -EACCES;
	}
	result = lw_identify(asker);
	asker->root = result ? -1 : lw_file_of(task, "root", O_PATH | O_DIRECTORY);
	if (asker->root < 0)
		return result ? result : asker->root;
	if (!lw_still_waits(supervisor, tag, asker->request))
		return -EACCES;
	other = lw_become(asker->uid, asker->gid);
	result = lw_walk(asker, q->flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0);
	lw_return(other);
	return result;
}

/* Ask the kernel about the object; false where it says nothing. Births are told since Linux 4.11. */
static bool describe(int object, const struct question *q, struct file *file)
{
	struct statfs system;
	struct statx about;

	if (syscall(SYS_statx, object, "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &about))
		return false;
	file->inode = about.stx_ino;
	file->device = about.stx_dev_major << 20 | about.stx_dev_minor;
	file->born = about.stx_mask & STATX_BTIME ? about.stx_btime.tv_sec * 1000000000LL + about.stx_btime.tv_nsec : 0;
	file->in_overlay = q->gives && !fstatfs(object, &system) && (unsigned long)system.f_type == OVERLAY_MAGIC;
	return true;
}

/* The answer to a call about owners: 0 or -errno; LW_GO_ON for a file that was given to nobody, and for what the kernel
 * says better. */
int lw_look_at_owner(struct lw_supervisor *supervisor, uint64_t tag, const struct seccomp_notif *request)
{
	struct lw_asker asker = { .request = request, .root = -1, .inotify = -1, .object = -1 };
	struct question q;
	struct file file = { 0 };
	struct row row = { 0 };
	int mem = -1, result;

	if (!ask(&request->data, &q))
		return LW_GO_ON;
	/* Opened before the task is found to wait still, so that the memory is no other's. */
	if (!q.gives)
		mem = lw_file_of((pid_t)request->pid, "mem", O_WRONLY);
	result = !q.gives && mem < 0 ? mem : find(supervisor, tag, &asker, &q);
	if (result || !describe(asker.object, &q, &file))
		/* What root may not look at it may give away, and nothing comes of it. */
		result = !q.gives ? LW_GO_ON : result == -EACCES || result == -ENOMEM ? 0 : result;
	else
		result = look_up(supervisor, tag, &q, &file, &row);
	if (!result && !q.gives)
		result = tell(supervisor, tag, &q, asker.object, &row, mem);
	if (mem >= 0)
		close(mem);
	if (asker.root >= 0)
		close(asker.root);
	if (asker.object >= 0)
		close(asker.object);
	return result;
}
