/* A program's arguments, as the daemon sends them in a memory file. See command.c. */
#ifndef LW_COMMAND_H
#define LW_COMMAND_H

#include <stdint.h>

/* Bytes of a block, and strings in it, at most. */
#define LW_COMMAND_BYTES (4U << 20)
#define LW_COMMAND_STRINGS 8192U

/* Before the strings: the folder, the paths, the arguments, the environment, each with its NUL. */
struct lw_command_head {
	uint32_t paths, arguments, variables;
	uint32_t size; /* of all strings with their NULs, in bytes */
};

struct lw_command {
	const char *folder;  /* to change to */
	char **paths;        /* to try in turn, up to the first that can be run; NULL at the end */
	char **arguments;
	char **variables;
	void *memory;        /* everything above lies in it */
	uint64_t size;
};

int lw_command_read(int fd, struct lw_command *ret);
void lw_command_free(struct lw_command *command);

#endif
