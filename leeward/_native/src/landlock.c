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
#define RULE_PATH_BENEATH 1
#define RULE_NET_PORT 2

struct ruleset_attr {
	uint64_t handled_access_fs;
	uint64_t handled_access_net;
	uint64_t scoped;
};

struct path_beneath_attr {
	uint64_t allowed_access;
	int32_t parent_fd;
} __attribute__((packed));

struct net_port_attr {
	uint64_t allowed_access;
	uint64_t port;
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

/* Allow rights on what *path* names and on everything beneath it.
 *
 * Symbolic links are followed. A path that isn't a directory can't hold a directory's
 * rights (EINVAL); it gets those of them that are in file_access: one refused call is
 * cheaper than an fstat of each path, and nearly all are directories. */
int lw_landlock_allow_path(int ruleset_fd, const char *path, uint64_t allowed_access,
			   uint64_t file_access)
{
	struct path_beneath_attr attr = { .allowed_access = allowed_access };
	int error = 0;

	attr.parent_fd = open(path, O_PATH | O_CLOEXEC);
	if (attr.parent_fd < 0)
		return -errno;
	if (syscall(SYS_landlock_add_rule, ruleset_fd, RULE_PATH_BENEATH, &attr, 0) < 0)
		error = -errno;
	if (error == -EINVAL && (allowed_access & file_access) != allowed_access) {
		attr.allowed_access = allowed_access & file_access;
		error = 0;
		if (syscall(SYS_landlock_add_rule, ruleset_fd, RULE_PATH_BENEATH, &attr, 0) < 0)
			error = -errno;
	}
	close(attr.parent_fd);
	return error;
}

/* Allow rights on one port, in host byte order. Linux 6.7. */
int lw_landlock_allow_port(int ruleset_fd, uint16_t port, uint64_t allowed_access)
{
	const struct net_port_attr attr = { .allowed_access = allowed_access, .port = port };

	return syscall(SYS_landlock_add_rule, ruleset_fd, RULE_NET_PORT, &attr, 0) < 0 ? -errno : 0;
}

/* Enforce a ruleset on the calling thread and all that it starts from now on.
 *
 * Irreversible; needs no_new_privs. -E2BIG past 16 rulesets. */
int lw_landlock_restrict_self(int ruleset_fd, uint32_t flags)
{
	return syscall(SYS_landlock_restrict_self, ruleset_fd, flags) < 0 ? -errno : 0;
}
