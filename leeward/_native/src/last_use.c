/* Tells when nobody has a file any more: no name, no descriptor, also of O_PATH, no mapping. inotify(7), IN_DELETE_SELF
 *
 * Runs in:  the daemon, for files that its sandboxes' processes have. A watch keeps no page of the file. */

#include "last_use.h"

#include <errno.h>
#include <stdio.h>
#include <sys/inotify.h>

/* Make a queue of events, as inotify(7) has them. Returns a close-on-exec descriptor, or -errno. */
int lw_last_uses(void)
{
	int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

/* Have *queue* tell of the last use of the file that is open as *fd*. Returns the watch's number, the same for each
 * descriptor of a file, or -errno. */
int lw_last_use(int queue, int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int watch = inotify_add_watch(queue, path, IN_DELETE_SELF);
	return watch < 0 ? -errno : watch;
}
