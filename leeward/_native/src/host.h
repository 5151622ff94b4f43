/* What the kernel offers, asked by calls that change nothing. See host.c. */
#ifndef LEEWARD_HOST_H
#define LEEWARD_HOST_H

int lw_io_uring_setup_refusal(void);

#endif
