/* seccomp(2): ask what the kernel knows. */

#include "seccomp.h"

#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether the kernel knows all of these filter flags.
 *
 * Flags are checked before the program is read, so a program at address 0 gives
 * EFAULT when they are known and EINVAL when not. Installs nothing.
 * Returns 1, 0, or -errno. */
int lw_seccomp_flags_known(unsigned int flags)
{
	if (!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, NULL))
		return -EPROTO;	/* a null program was accepted, which no known Linux does */
	if (errno == EFAULT)
		return 1;
	return errno == EINVAL ? 0 : -errno;
}

/* Whether the kernel knows this SECCOMP_RET_ action. SECCOMP_GET_ACTION_AVAIL, Linux 4.14.
 * Returns 1, 0, or -errno. */
int lw_seccomp_action_known(uint32_t action)
{
	if (!syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action))
		return 1;
	return errno == EOPNOTSUPP ? 0 : -errno;
}

/* The kernel's sizes of the notification structs, in bytes.
 * SECCOMP_GET_NOTIF_SIZES, Linux 5.0. A newer kernel's may be larger than ours.
 * Returns 0 or -errno. */
int lw_seccomp_notif_sizes(uint16_t *ret_notif, uint16_t *ret_resp, uint16_t *ret_data)
{
	struct seccomp_notif_sizes sizes;

	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes))
		return -errno;
	*ret_notif = sizes.seccomp_notif;
	*ret_resp = sizes.seccomp_notif_resp;
	*ret_data = sizes.seccomp_data;
	return 0;
}
