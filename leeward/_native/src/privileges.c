#include "privileges.h"

#include <errno.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

/* prctl(2) with at most two arguments; returns its value or -errno. */
int lw_prctl(int option, unsigned long a, unsigned long b)
{
	int ret = prctl(option, a, b, 0UL, 0UL);
	return ret < 0 ? -errno : ret;
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
