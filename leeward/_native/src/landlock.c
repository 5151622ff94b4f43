#include "landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

/* Not the header's macros and structs: landlock.h says why. */
#define CREATE_RULESET_VERSION (1U << 0)

struct ruleset_attr {
	uint64_t handled_access_fs;
	uint64_t handled_access_net;
	uint64_t scoped;
};

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

/* Make a ruleset that denies all that is named here until a rule allows it.
 *
 * The descriptor is close-on-exec and the caller's.
 * -E2BIG where the kernel is too old for a non-zero argument, -EINVAL for an unknown right. */
int lw_landlock_create_ruleset(uint64_t handled_access_fs, uint64_t handled_access_net,
			       uint64_t scoped, int *ret_fd)
{
	const struct ruleset_attr attr = {
		.handled_access_fs = handled_access_fs,
		.handled_access_net = handled_access_net,
		.scoped = scoped,
	};

	long fd = syscall(SYS_landlock_create_ruleset, &attr, sizeof attr, 0);
	if (fd < 0)
		return -errno;
	*ret_fd = (int)fd;
	return 0;
}
