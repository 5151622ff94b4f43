/* A program's arguments, as the daemon sends them in a memory file. See command.c. */
#ifndef LW_COMMAND_H
#define LW_COMMAND_H

#include <stdint.h>

/* Bytes of all strings, and strings of each kind, at most. */
#define LW_COMMAND_BYTES (4U << 20)
#define LW_COMMAND_STRINGS 8192U

/* The counts at the start of the file. The strings follow: the folder, the paths, the arguments, the environment, each with
 * its NUL. */
struct lw_command_head {
	uint32_t paths, arguments, variables;
	uint32_t size; /* of all strings with their NULs, in bytes */
};

struct lw_command {
	const char *folder;  /* the working directory */
	char **paths;        /* paths of the program, to try in turn; this list and the others end with NULL */
	char **arguments;
	char **variables;
	void *memory;        /* the mapping that all of the above points into */
	uint64_t size;
};

int lw_command_read(int fd, struct lw_command *ret);
void lw_command_free(struct lw_command *command);

#endif
