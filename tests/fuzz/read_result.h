/* Reads a result to its last byte, so that ASan sees a place outside of its block. */
#ifndef READ_RESULT_H
#define READ_RESULT_H

#include <stdint.h>
#include <string.h>

#include "leeward.h"

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
}

#endif
