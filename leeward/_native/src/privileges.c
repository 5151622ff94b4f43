/* Capabilities, prctl options, namespaces, names: one call each. */

#include "privileges.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* prctl(2) with at most two arguments; returns its value or -errno. */
int lw_prctl(int option, unsigned long a, unsigned long b)
{
	int ret = prctl(option, a, b, 0UL, 0UL);
	return ret < 0 ? -errno : ret;
}

/* capset(2): no capability is left in any set but the bounding one. */
int lw_drop_capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };

	if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0UL, 0UL, 0UL) < 0)
		return -errno;
	return syscall(SYS_capset, &head, none) < 0 ? -errno : 0;
}

/* PR_CAPBSET_DROP for every capability that this kernel knows. Needs CAP_SETPCAP. */
int lw_drop_bounding(void)
{
	for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0UL, 0UL, 0UL) >= 0; cap++)
		if (prctl(PR_CAPBSET_DROP, cap, 0UL, 0UL, 0UL) < 0)
			return -errno;
	return 0;
}

/* capget(2): how many bits are set in the effective and permitted sets; or -errno. */
int lw_capabilities_left(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct sets[2] = { 0 };

	if (syscall(SYS_capget, &head, sets) < 0)
		return -errno;
	int count = 0;
	for (int i = 0; i < 2; i++)
		count += __builtin_popcount(sets[i].effective | sets[i].permitted);
	return count;
}

/* sethostname(2). */
int lw_sethostname(const char *name, unsigned length)
{
	return sethostname(name, length) < 0 ? -errno : 0;
}
