#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fault.h"
#include "request.h"
#include "sandbox.h"
#include "text.h"

/* Room for a path, with its NUL. */
#define PATH_ROOM 4096

/* Check *mounts*, and report the first invalid one. Returns a leeward_error. */
int lw_mounts_check(const leeward_mount *mounts, size_t count)
{
	int failed = LEEWARD_OK;

	if (count && !mounts)
		return lw_invalid("mounts", "NULL, and a count above 0");
	if (count > LW_MAX_MOUNTS)
		return lw_invalid("mounts", "more than 16 of them");
	for (size_t i = 0; !failed && i < count; i++) {
		const char *target = mounts[i].target;

		if (!mounts[i].source || !*mounts[i].source || strlen(mounts[i].source) >= PATH_ROOM)
			return lw_invalid("mounts", "a source is NULL, empty or too long");
		if (!target || *target != '/' || strlen(target) >= PATH_ROOM)
			return lw_invalid("mounts", "a target isn't an absolute path");
		failed = lw_check_text("mounts", target);
	}
	return failed;
}

/* Fail because a source can't be opened. Nothing was sent to the daemon. */
static int refuse(const char *source, const char *reason)
{
	char where[256];

	lw_quoted(where, sizeof where, source);
	return lw_fail(LEEWARD_REJECTED, "mount %s: %s", where, reason);
}

/* Open the source of one mount, and resolve its path. Returns a leeward_error. */
static int open_one(struct lw_folder *folder, const leeward_mount *mount)
{
	char link[32], path[PATH_ROOM];
	struct stat about;
	ssize_t length;

	*folder = (struct lw_folder){.fd = open(mount->source, O_PATH | O_CLOEXEC), .mount = mount};
	if (folder->fd < 0)
		return refuse(mount->source, strerror(errno));
	if (fstat(folder->fd, &about))
		return refuse(mount->source, strerror(errno));
	if (!S_ISDIR(about.st_mode) && !S_ISREG(about.st_mode))
		return refuse(mount->source, "it is neither a folder nor a file");
	folder->is_file = S_ISREG(about.st_mode);
	snprintf(link, sizeof link, "/proc/self/fd/%d", folder->fd);
	length = readlink(link, path, sizeof path - 1);
	if (length < 0)
		return refuse(mount->source, strerror(errno));
	path[length] = '\0';
	if (lw_check_text("mounts", path))
		return LEEWARD_INVALID;
	folder->path = strdup(path);
	return folder->path ? LEEWARD_OK : lw_fail_no_memory();
}

/* Open the sources of *mounts*, which lw_mounts_check has accepted. The caller calls lw_folders_close, also after an
 * error. Returns a leeward_error. */
int lw_folders_open(struct lw_folders *folders, const leeward_mount *mounts, size_t count)
{
	int failed = LEEWARD_OK;

	for (size_t i = 0; !failed && i < count; i++)
		failed = open_one(&folders->folders[folders->count++], &mounts[i]);
	return failed;
}

void lw_folders_close(struct lw_folders *folders)
{
	while (folders->count) {
		struct lw_folder *folder = &folders->folders[--folders->count];

		if (folder->fd >= 0)
			close(folder->fd);
		free(folder->path);
	}
}

/* Send one byte with all descriptors to a dock's *socket*. Returns a leeward_error. */
int lw_folders_send(const struct lw_folders *folders, int socket)
{
	union {
		char room[CMSG_SPACE(LW_MAX_MOUNTS * sizeof(int))];
		struct cmsghdr aligned;
	} ancillary = {{0}};
	struct iovec byte = {(char[1]){0}, 1};
	struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &ancillary,
				 .msg_controllen = CMSG_SPACE(folders->count * sizeof(int))};
	struct cmsghdr *part = CMSG_FIRSTHDR(&message);
	ssize_t sent;

	part->cmsg_level = SOL_SOCKET;
	part->cmsg_type = SCM_RIGHTS;
	part->cmsg_len = CMSG_LEN(folders->count * sizeof(int));
	for (size_t i = 0; i < folders->count; i++)
		memcpy(CMSG_DATA(part) + i * sizeof(int), &folders->folders[i].fd, sizeof(int));
	do
		sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	if (sent < 0)
		return lw_fail(LEEWARD_BAD_REPLY, "the daemon's dock takes no descriptors: %s", strerror(errno));
	return LEEWARD_OK;
}

static void put_flag(struct lw_buffer *buffer, const char *name, int32_t flag)
{
	if (!flag)
		return;
	lw_put_word(buffer, name);
	lw_put_true(buffer);
}

/* Write the value of the field `mounts`. */
void lw_folders_put(struct lw_buffer *buffer, const struct lw_folders *folders)
{
	lw_put_array(buffer, folders->count);
	for (size_t i = 0; i < folders->count; i++) {
		const struct lw_folder *folder = &folders->folders[i];
		const leeward_mount *mount = folder->mount;
		size_t length = strlen(mount->target);

		while (length > 1 && mount->target[length - 1] == '/')
			length--;
		lw_put_map(buffer, (size_t)2 + (mount->writable != 0) + (mount->overlay != 0) + (folder->is_file != 0));
		lw_put_word(buffer, "path");
		lw_put_word(buffer, folder->path);
		lw_put_word(buffer, "target");
		lw_put_text(buffer, mount->target, length);
		put_flag(buffer, "writable", mount->writable);
		put_flag(buffer, "overlay", mount->overlay);
		put_flag(buffer, "file", folder->is_file);
	}
}
