/* Folders of the host for a sandbox. This process opens them, with its own rights, and sends them to a dock of the daemon's opener.
 *
 * Runs in:   libleeward.
 * Owns:      a descriptor for each folder, until the sandbox is open or refused. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "leeward.h"
#include "wire.h"

/* Folders of one sandbox, at most; as leeward/spec/folders.py has it, a test compares. */
#define LW_MAX_MOUNTS 16
/* Room for a path, with its NUL. */
#define LW_PATH_ROOM 4096

struct lw_folder {
	int fd;
	const leeward_mount *mount;
	char *path; /* its resolved path, from the kernel */
	int is_file;
};

struct lw_folders {
	struct lw_folder folders[LW_MAX_MOUNTS];
	size_t count;
};

int lw_mounts_check(const leeward_mount *mounts, size_t count);
int lw_folders_open(struct lw_folders *folders, const leeward_mount *mounts, size_t count);
int lw_folders_dock(const struct lw_folders *folders, leeward_handle *handle, int64_t *ret_dock);
void lw_folders_put(struct lw_buffer *buffer, const struct lw_folders *folders);
void lw_folders_close(struct lw_folders *folders);
