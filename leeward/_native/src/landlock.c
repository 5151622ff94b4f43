#include "landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#endif

/* Not from the system's header: landlock.h says why. */
#define CREATE_RULESET_VERSION (1U << 0)

/* Ask the kernel for its Landlock ABI version.
 *
 * Returns 0; -ENOSYS if Landlock was not built, -EOPNOTSUPP if it is not in the list of LSMs, or another -errno. */
int lw_landlock_abi(int *ret_abi)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_RULESET_VERSION);
	if (abi < 0)
		return -errno;
	*ret_abi = (int)abi;
	return 0;
}
