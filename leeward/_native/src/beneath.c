/* Opens a file below a folder, by openat2(2), Linux 5.6.
 *
 * Runs in:  the porter and the client, for each file of a folder: a table of one step would take ten times as long. */

#include "beneath.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Open *path* in *folder*; *resolve* has the flags RESOLVE_*. Returns a descriptor, or -errno. */
int lw_open_beneath(int folder, const char *path, uint64_t flags, uint64_t mode, uint64_t resolve)
{
	const struct { uint64_t flags, mode, resolve; } how = { flags, mode, resolve }; /* struct open_how */
	long fd = syscall(SYS_openat2, folder, path, &how, sizeof(how));

	return fd < 0 ? -errno : (int)fd;
}
