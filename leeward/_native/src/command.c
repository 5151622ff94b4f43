/* A program's arguments, read from the memory file in which the daemon sends them.
 *
 * Runs in:  the keeper, before it clones the process that becomes the program.
 *
 * The arguments come from a client. A keeper serves one client after the other, and each job is a copy of the keeper's
 * memory. So the arguments are in a mapping of their own, which is unmapped before the next order is read. */

#include "command.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int all(int fd, void *ret, size_t size, off_t offset)
{
	ssize_t got;

	while ((got = pread(fd, ret, size, offset)) < 0 && EINTR == errno)
		;
	if (got < 0)
		return -errno;
	return (size_t)got == size ? 0 : -EPROTO;
}

/* Fill *row* with pointers to `count` strings from *at* on, and a NULL. Returns the address after the last string; NULL if
 * they don't end before *end*. */
static char *take(char **row, uint32_t count, char *at, const char *end)
{
	for (uint32_t i = 0; i < count; i++) {
		char *nul = memchr(at, 0, (size_t)(end - at));
		if (!nul)
			return NULL;
		row[i] = at;
		at = nul + 1;
	}
	row[count] = NULL;
	return at;
}

/* Read the arguments from *fd*. The caller frees them by lw_command_free.
 *
 * Returns 0; -EPROTO for malformed content; or another -errno. */
int lw_command_read(int fd, struct lw_command *ret)
{
	struct lw_command_head head;
	int err = all(fd, &head, sizeof(head), 0);

	if (err < 0)
		return err;
	if (!head.paths || !head.arguments || head.paths > LW_COMMAND_STRINGS || head.arguments > LW_COMMAND_STRINGS ||
	    head.variables > LW_COMMAND_STRINGS || !head.size || head.size > LW_COMMAND_BYTES)
		return -EPROTO;

	const size_t pointers = ((size_t)head.paths + head.arguments + head.variables + 3) * sizeof(char *);
	const size_t size = pointers + head.size;
	char **rows = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (MAP_FAILED == (void *)rows)
		return -ENOMEM;
	struct lw_command command = { .memory = rows, .size = size, .paths = rows,
				      .arguments = rows + head.paths + 1,
				      .variables = rows + head.paths + 1 + head.arguments + 1 };
	char *folder[2] = { NULL, NULL }, *at = (char *)rows + pointers;
	const char *end = at + head.size;

	if (0 == (err = all(fd, at, head.size, sizeof(head)))) {
		if (!(at = take(folder, 1, at, end)) || !(at = take(command.paths, head.paths, at, end)) ||
		    !(at = take(command.arguments, head.arguments, at, end)) ||
		    !(at = take(command.variables, head.variables, at, end)) || at != end)
			err = -EPROTO;
	}
	if (err < 0) {
		lw_command_free(&command);
		return err;
	}
	command.folder = folder[0];
	*ret = command;
	return 0;
}

void lw_command_free(struct lw_command *command)
{
	munmap(command->memory, command->size);
}
