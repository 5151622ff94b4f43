/* Hostile bytes as a daemon's reply: through the frame's check to a result and a status.
 *
 * libFuzzer calls this with a payload. Memory files are played by blocks of just the size
 * that is announced, so a place outside of one is a fault that ASan sees; results are
 * read to their last byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "read_result.h"
#include "reply.h"
#include "text.h"

/* Announced sizes above this are taken for a file that didn't come. */
#define MOST 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In the place of munmap, by the compiler's command line. */
int munmap(void *start, size_t length)
{
	(void)length;
	free(start);
	return 0;
}

static void check_result(const leeward_result *result)
{
	read_result(result);
	if (result->outcome < LEEWARD_FINISHED || result->outcome > LEEWARD_INTERNAL || result->limit < LEEWARD_LIMIT_NONE ||
	    result->limit > LEEWARD_LIMIT_CPU)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	/* A block of its own, as the library has it: header, payload, one byte to spare. */
	uint8_t *block = malloc(LW_HEADER + size + 1);
	struct lw_mapping files[LW_MAX_ARENAS] = {{NULL, 0}};
	struct lw_reply reply;
	leeward_result *result = NULL;
	const char *wrong = NULL;
	int came = 1;

	if (!block)
		return 0;
	if (size)
		memcpy(block + LW_HEADER, data, size);
	if (lw_reply_read(block + LW_HEADER, size, &reply, &wrong)) {
		if (!wrong)
			abort();
		free(block);
		return 0;
	}
	if (reply.refused) {
		read_bytes(reply.kind.data, reply.kind.length);
		read_bytes(reply.message.data, reply.message.length);
	}
	for (size_t i = 0; i < reply.arena_count; i++)
		came = came && reply.arenas[i] <= MOST;
	for (size_t i = 0; came && i < reply.arena_count; i++)
		files[i] = (struct lw_mapping){calloc(1, reply.arenas[i]), reply.arenas[i]};
	if (came && !lw_result_make(&reply, block, files, &result, &wrong)) {
		check_result(result);
		leeward_free_result(result);
	} else {
		free(block);
		lw_unmap(files);
	}
	return 0;
}
