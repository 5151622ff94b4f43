/* Text: UTF-8, and values as Python would show them. Pure.
 *
 * Runs in:   libleeward and the command line, whose messages are those of the Python one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Bytes that lw_double_text writes at most, with the NUL. */
#define LW_DOUBLE_TEXT 48

int lw_utf8_step(const uint8_t *at, const uint8_t *end, uint32_t *ret_point);
bool lw_utf8_valid(const uint8_t *data, size_t length);
size_t lw_utf8_length(const uint8_t *data, size_t length);
bool lw_is_control(uint32_t point);
bool lw_is_plain_name(const uint8_t *name, size_t length);
void lw_ascii(char *to, size_t size, const char *text);
void lw_double_text(char to[LW_DOUBLE_TEXT], double number);
void lw_escape(struct lw_buffer *buffer, const uint8_t *data, size_t length);
void lw_json_text(struct lw_buffer *buffer, const uint8_t *data, size_t length);
int lw_json(struct lw_buffer *buffer, struct lw_cursor *cursor);
int lw_json_map(struct lw_buffer *buffer, const struct lw_value *map);
