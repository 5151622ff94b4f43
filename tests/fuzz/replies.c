/* Hostile bytes as a daemon's reply: through the frame's check to a result and a status.
 *
 * libFuzzer calls this with a payload. Memory files are played by blocks of just the size
 * that is announced, so a place outside of one is a fault that ASan sees; results are
 * read to their last byte. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

static volatile unsigned char sum;

static void read_bytes(const void *data, size_t length)
{
	for (size_t i = 0; i < length; i++)
		sum ^= ((const unsigned char *)data)[i];
}

static void read_text(const char *text)
{
	if (text)
		read_bytes(text, strlen(text) + 1);
}

static void read_result(const leeward_result *result)
{
	read_bytes(result->stdout_data, result->stdout_length);
	read_bytes(result->stderr_data, result->stderr_length);
	read_text(result->error_type);
	read_text(result->error_message);
	read_text(result->error_traceback);
	for (size_t i = 0; i < result->denied_count; i++)
		read_text(result->denied[i].name);
	for (size_t i = 0; i < result->degraded_count; i++)
		read_text(result->degraded[i]);
	for (size_t i = 0; i < result->left_out_count; i++) {
		read_text(result->left_out[i].name);
		read_text(result->left_out[i].reason);
	}
	for (size_t i = 0; i < result->file_count; i++) {
		read_text(result->files[i].name);
		read_bytes(result->files[i].data, result->files[i].length);
	}
	read_text(result->value);
	for (size_t i = 0; i < result->shown_count; i++)
		for (size_t j = 0; j < result->shown[i].form_count; j++) {
			read_text(result->shown[i].forms[j].type);
			read_bytes(result->shown[i].forms[j].data, result->shown[i].forms[j].length);
		}
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
		read_result(result);
		leeward_free_result(result);
	} else {
		free(block);
		lw_unmap(files);
	}
	return 0;
}
