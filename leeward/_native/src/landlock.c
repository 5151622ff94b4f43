#include "landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#endif

/* Not the header's macros and structs: landlock.h says why. */
#define CREATE_RULESET_VERSION (1U << 0)

/* Ask which Landlock ABI the kernel speaks.
 *
 * -ENOSYS where it was not built, -EOPNOTSUPP where it is not in the list of LSMs. */
int lw_landlock_abi(int *ret_abi)
{
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, CREATE_RULESET_VERSION);
	if (abi < 0)
		return -errno;
	*ret_abi = (int)abi;
	return 0;
}
