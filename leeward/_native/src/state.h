/* The state of a process as bytes in a memory file, and back. See state_dump.c and state_load.c. */
#pragma once

#include "spawn.h"

#include <stdbool.h>
#include <stdint.h>

#define LW_STATE_NAME 256
/* In the place of a device: files of each are taken as memory. */
#define LW_EVERY_FILE UINT64_MAX

/* One call of lw_state_dump, and what a copy finds of it in its own memory. */
struct lw_state {
	uint64_t registers[9];
	struct lw_thread thread;
	uint64_t mask;         /* of signals, at the call */
	uint64_t block, block_size; /* in a copy: where the loader is */
	int64_t brk;           /* in a copy: the kernel's */
	int64_t word;          /* in a copy: what the loader was given for it */
	char name[LW_STATE_NAME]; /* of the file that an error is about */
};

bool lw_state_known(void);
int64_t lw_state_dump(struct lw_state *state, int orders, int answers, uint64_t scratch, int memory, int gate, int number);
int64_t lw_state_load(int file, int memory, int64_t word, char *ret_name);
