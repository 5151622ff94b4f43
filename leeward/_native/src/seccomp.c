/* seccomp(2): ask what the kernel knows, and what a filter answers. */

#include "seccomp.h"

#include <errno.h>
#include <linux/filter.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Does the kernel know all of these filter flags?
 *
 * Flags are checked before the program is read, so a program at address 0 gives
 * EFAULT when they are known and EINVAL when not. Installs nothing.
 * Returns 1, 0, or -errno. */
int lw_seccomp_flags_known(unsigned int flags)
{
	if (!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, NULL))
		return -EPROTO;	/* a null program was accepted: not Linux as we know it */
	if (errno == EFAULT)
		return 1;
	return errno == EINVAL ? 0 : -errno;
}

/* Does the kernel know this SECCOMP_RET_ action? SECCOMP_GET_ACTION_AVAIL, Linux 4.14.
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

/* What the kernel would get from a filter for one call, 0 and *ret_answer; -EINVAL for an instruction that no
 * filter of ours has, or a load or a jump past an end. */
static int run_filter(const struct sock_filter *insns, size_t count, const struct seccomp_data *call,
		      uint32_t *ret_answer)
{
	uint32_t a = 0;

	for (size_t at = 0; at < count; at++) {
		const struct sock_filter *insn = &insns[at];

		switch (insn->code) {
		case BPF_RET | BPF_K:
			*ret_answer = insn->k;
			return 0;
		case BPF_LD | BPF_W | BPF_ABS:
			if (insn->k % sizeof(a) || insn->k > sizeof(*call) - sizeof(a))
				return -EINVAL;
			memcpy(&a, (const char *)call + insn->k, sizeof(a));
			break;
		case BPF_ALU | BPF_AND | BPF_K:
			a &= insn->k;
			break;
		case BPF_JMP | BPF_JA:
			if (insn->k >= count)
				return -EINVAL;
			at += insn->k;
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			at += a == insn->k ? insn->jt : insn->jf;
			break;
		case BPF_JMP | BPF_JGT | BPF_K:
			at += a > insn->k ? insn->jt : insn->jf;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			at += a >= insn->k ? insn->jt : insn->jf;
			break;
		case BPF_JMP | BPF_JSET | BPF_K:
			at += a & insn->k ? insn->jt : insn->jf;
			break;
		default:
			return -EINVAL;
		}
	}
	return -EINVAL;
}

/* Run a filter, struct sock_filter[], over so many calls, struct seccomp_data[]. Installs nothing.
 * Returns how many it answered, up to the first that it can't. */
size_t lw_seccomp_run(const void *filter, size_t count, const void *data, size_t number, uint32_t *ret_answers)
{
	const struct sock_filter *insns = filter;
	const struct seccomp_data *calls = data;
	size_t done = 0;

	while (done < number && !run_filter(insns, count, &calls[done], &ret_answers[done]))
		done++;
	return done;
}
