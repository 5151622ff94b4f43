/* What virtiofsd does that only root may, left out: preloaded where an ordinary user runs it (share.py).
 *
 * It gives up supplementary groups, and ends where it can't; in a namespace of one id nobody can. And it opens files as
 * it is asked to, by overlayfs in the guest with O_NOATIME, which is for their owner. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>

int getgroups(int size, gid_t *list)
{
	(void)size;
	(void)list;
	return 0;
}

/* What openat(2) is in a program compiled for large files with _FORTIFY_SOURCE: Debian's virtiofsd. It makes files by
 * another call, and has none to make on a read-only mount. */
int __openat64_2(int folder, const char *path, int flags);
int __openat64_2(int folder, const char *path, int flags)
{
	return openat(folder, path, flags & ~O_NOATIME);
}
