/* The calls of mount_setattr(2), move_mount(2) and their kin. See mounts.c. */
#ifndef LW_MOUNTS_H
#define LW_MOUNTS_H

#include <linux/mount.h>
#include <stdint.h>
#include <fcntl.h>

/* Linux 5.12; older headers lack it. */
#ifndef MOUNT_ATTR_IDMAP
#define MOUNT_ATTR_IDMAP 0x00100000
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

int lw_move_mount(int from, const char *to);
int lw_mount_remount(const char *path, unsigned flags);
int lw_mount_id(int fd, uint64_t *ret_id);
int lw_fsopen(const char *type);
int lw_fsconfig_string(int fs, const char *key, const char *value);
int lw_fsmount(int fs, unsigned attributes);

#endif
