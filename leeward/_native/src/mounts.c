/* The descriptor-based mount calls, Linux 5.2; mount(2) for what needs none.
 *
 * Runs in: keeper and runner. Each function needs CAP_SYS_ADMIN over the mount
 * namespace. No function follows a path that a job can change: callers open a path first
 * and mount by descriptor. */

#include "mounts.h"

#include <errno.h>
#include <linux/mount.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_open_tree
#define SYS_open_tree 428
#define SYS_move_mount 429
#define SYS_fsopen 430
#define SYS_fsconfig 431
#define SYS_fsmount 432
#endif

enum { STATX_MNT_ID_BIT = 0x1000, MNT_ID_WORD = 0x90 / 8 };

/* MS_REMOUNT and MS_BIND of <sys/mount.h>, which clashes with <linux/mount.h> before glibc 2.37. */
enum { REMOUNT = 1 << 5, BIND = 1 << 12 };

/* move_mount(2): put the mount that *from* refers to on *to*. */
int lw_move_mount(int from, const char *to)
{
	return syscall(SYS_move_mount, from, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
}

/* mount(2): set the attributes of the attached mount at *path*, and clear all others of
 * MS_RDONLY, MS_NOSUID, MS_NODEV and MS_NOEXEC. How access times are kept stays as it is. */
int lw_mount_remount(const char *path, unsigned flags)
{
	return syscall(SYS_mount, NULL, path, NULL, REMOUNT | BIND | flags, NULL) < 0 ? -errno : 0;
}

/* statx(2): the id, as in /proc/self/mountinfo, of the mount that *fd* is on. Linux 5.8. */
int lw_mount_id(int fd, uint64_t *ret_id)
{
	/* struct statx; headers before 5.8 lack the member. */
	union { uint32_t mask; uint64_t words[32]; } found = { .words = { 0 } };

	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT, STATX_MNT_ID_BIT, &found) < 0)
		return -errno;
	if (!(found.mask & STATX_MNT_ID_BIT))
		return -ENOSYS;
	*ret_id = found.words[MNT_ID_WORD];
	return 0;
}

/* fsopen(2): a new, unconfigured filesystem. */
int lw_fsopen(const char *type)
{
	long fd = syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
	return fd < 0 ? -errno : (int)fd;
}

/* fsconfig(2): set one option. If *value* is NULL the option is a flag; if *key* is NULL the filesystem is created. */
int lw_fsconfig_string(int fs, const char *key, const char *value)
{
	unsigned command = !key ? FSCONFIG_CMD_CREATE : value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG;
	return syscall(SYS_fsconfig, fs, command, key, value, 0) < 0 ? -errno : 0;
}

/* fsmount(2): a detached mount of a created filesystem. *attributes*: MOUNT_ATTR_*. */
int lw_fsmount(int fs, unsigned attributes)
{
	long fd = syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, attributes);
	return fd < 0 ? -errno : (int)fd;
}

