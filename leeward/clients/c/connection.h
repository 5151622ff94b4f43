/* A connection: a socket, the bytes of an incomplete frame, a queue of received descriptors, an arena for large requests; and
 * which socket it is.
 *
 * Runs in:   libleeward and the command line.
 * Waits:     in lw_connection_connect, 5 s at most, and in lw_connection_wait and lw_connection_receive as long as
 *            the caller says.
 *            All other functions don't block.
 * Trust:     none in memory files. The kernel is asked for a file's size and seals before one byte of it is read; an
 *            arena is only written, by pwrite(2), which a file that shrinks can't turn into a SIGBUS. */
#pragma once

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "reply.h"

/* Seconds to wait for a connection while the daemon's backlog is full. */
#define LW_CONNECT_S 5
/* Seconds of silence before the library sends a ping. */
#define LW_PATIENCE_S 10.0
/* Descriptors of one read, and in the queue, at most. */
#define LW_MAX_DESCRIPTORS 16

/* The memory file for large requests, of at least LW_LARGE bytes, that the daemon gave to a connection. */
struct lw_arena {
	int fd; /* -1: none */
	size_t count, size;
	uint64_t taken; /* slots with requests that have no answer yet */
	bool asked;
};

struct lw_connection {
	char *path;
	int fd; /* -1: none */
	pid_t pid; /* the process that connected: after a fork the connection belongs to the parent */
	uint8_t *data; /* received, not yet taken */
	size_t length, capacity;
	int descriptors[2 * LW_MAX_DESCRIPTORS];
	size_t descriptor_count;
	struct lw_arena arena;
};

double lw_now(void);
double lw_earlier(double one, double other);
int lw_connection_open(struct lw_connection *connection, const char *path);
void lw_connection_close(struct lw_connection *connection);
void lw_connection_free(struct lw_connection *connection);
int lw_connection_connect(struct lw_connection *connection);
int lw_connection_away(const struct lw_connection *connection, const char *reason);
int lw_connection_silent(const struct lw_connection *connection, const char *before, const char *after);
ssize_t lw_connection_send(struct lw_connection *connection, const uint8_t *data, size_t length);
ssize_t lw_connection_receive(struct lw_connection *connection, bool wait);
int lw_connection_wait(struct lw_connection *connection, short events, double seconds, const sigset_t *mask);
int lw_connection_take(struct lw_connection *connection, uint8_t **ret_block, size_t *ret_length);

int lw_memfile_map(struct lw_connection *connection, const struct lw_reply *reply,
		   struct lw_mapping ret_mappings[LW_MAX_ARENAS]);
const char *lw_dock_take(struct lw_connection *connection, const struct lw_reply *reply, int *ret_socket);
const char *lw_arena_take(struct lw_connection *connection, const struct lw_reply *reply);
int lw_arena_put(struct lw_connection *connection, const uint8_t *payload, size_t length);
void lw_arena_free_slot(struct lw_connection *connection, int slot);

/* place.c: where the daemon of this process's user listens. */
int lw_place(const char *path, char **ret_path);
int lw_place_named(const char *content, size_t length, const char **ret_value, size_t *ret_length);
