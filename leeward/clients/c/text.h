/* Text: UTF-8, and escapes for what must not reach a terminal as it is. Pure.
 *
 * Runs in:   libleeward and the command line, whose messages are the same as those of the Python command line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

int lw_utf8_step(const uint8_t *at, const uint8_t *end, uint32_t *ret_point);
bool lw_utf8_valid(const uint8_t *data, size_t length);
size_t lw_utf8_length(const uint8_t *data, size_t length);
bool lw_is_control(uint32_t point);
bool lw_is_plain_name(const uint8_t *name, size_t length);
void lw_quoted(char *to, size_t size, const char *text);
void lw_escape(struct lw_buffer *buffer, const uint8_t *data, size_t length);
