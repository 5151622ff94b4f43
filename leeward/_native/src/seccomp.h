#ifndef LW_SECCOMP_H
#define LW_SECCOMP_H

#include <stdint.h>

#include <linux/audit.h>
#include <linux/seccomp.h>

/* Linux 5.19; Debian 12's headers have it, older ones don't. */
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif

int lw_seccomp_flags_known(unsigned int flags);
int lw_seccomp_action_known(uint32_t action);
int lw_seccomp_notif_sizes(uint16_t *ret_notif, uint16_t *ret_resp, uint16_t *ret_data);

#endif
