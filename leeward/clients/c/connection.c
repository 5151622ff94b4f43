#include "connection.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "fault.h"
#include "leeward.h"
#include "text.h"

/* Bytes of one read, and the size of a connection's buffer before a larger frame arrives. */
#define READ_SIZE ((size_t)64 << 10)

/* The time of the monotonic clock, in seconds. */
double lw_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* The smaller of two times. fmin(3) would be the only function that needs libm. */
double lw_earlier(double one, double other)
{
	return one < other ? one : other;
}

/* A connection to *path*, or to the default socket; not connected. */
int lw_connection_open(struct lw_connection *connection, const char *path)
{
	*connection = (struct lw_connection){.fd = -1, .arena.fd = -1};
	return lw_place(path, &connection->path);
}

/* Fail with LEEWARD_AWAY, and a text that says how to start a daemon or name its socket. */
int lw_connection_away(const struct lw_connection *connection, const char *reason)
{
	char shown[1024];

	lw_quoted(shown, sizeof shown, connection->path);
	return lw_fail(LEEWARD_AWAY,
		       "no daemon answers on %s (%s); start one with `leeward daemon start`, or use `leeward run`,"
		       " which needs none", shown, reason);
}

/* Fail with LEEWARD_NO_ANSWER. The text is *before*, the socket's path, *after*. */
int lw_connection_silent(const struct lw_connection *connection, const char *before, const char *after)
{
	char shown[1024];

	lw_quoted(shown, sizeof shown, connection->path);
	return lw_fail(LEEWARD_NO_ANSWER, "%s %s %s", before, shown, after);
}

/* Fail because connect(2) was refused for lack of permission. The text says who owns the socket, and who may connect. */
static int locked_out(const struct lw_connection *connection)
{
	struct stat about;
	char shown[1024];

	lw_quoted(shown, sizeof shown, connection->path);
	if (stat(connection->path, &about))
		return lw_fail(LEEWARD_AWAY, "permission denied on %s: its folder is closed to this user", shown);
	if (about.st_mode & S_IWGRP)
		return lw_fail(LEEWARD_AWAY,
			       "permission denied on %s: it belongs to user %lu and group %lu, whose members may connect; an"
			       " administrator adds you by `usermod -aG %lu NAME`, and it takes a new login", shown,
			       (unsigned long)about.st_uid, (unsigned long)about.st_gid, (unsigned long)about.st_gid);
	return lw_fail(LEEWARD_AWAY,
		       "permission denied on %s: it belongs to user %lu, who alone may connect; the daemon's key `group`"
		       " lets a group in", shown, (unsigned long)about.st_uid);
}

static int away_errno(const struct lw_connection *connection, int error)
{
	char reason[128];

	if (error == EACCES)
		return locked_out(connection);

	snprintf(reason, sizeof reason, "%s", strerror(error));
	for (char *at = reason; *at; at++)
		*at = (char)tolower((unsigned char)*at);
	return lw_connection_away(connection, reason);
}

/* connect(2) to *path*, also where it is longer than a sockaddr_un. Returns 0 or -errno. */
static int connect_path(int fd, const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *name = strrchr(path, '/');
	size_t length = strlen(path);
	int folder, failed;
	char *parent;

	if (length < sizeof address.sun_path) {
		memcpy(address.sun_path, path, length);
		return connect(fd, (struct sockaddr *)&address, sizeof address) ? -errno : 0;
	}
	parent = name ? strndup(path, (size_t)(name - path) + 1) : strdup("."); /* with its slash, for "/name" */
	if (!parent)
		return -ENOMEM;
	folder = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	failed = folder < 0 ? -errno : 0;
	free(parent);
	if (failed)
		return failed;
	length = (size_t)snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", folder,
				  name ? name + 1 : path);
	if (length >= sizeof address.sun_path)
		failed = -ENAMETOOLONG;
	else if (connect(fd, (struct sockaddr *)&address, sizeof address))
		failed = -errno;
	close(folder);
	return failed;
}

static int set_timeout(int fd, int option, time_t seconds)
{
	struct timeval time = {.tv_sec = seconds};

	return setsockopt(fd, SOL_SOCKET, option, &time, sizeof time) ? -errno : 0;
}

/* Whether $LEEWARD_TRUSTED_UID names *uid*, whose daemon is trusted then. The environment is ignored in a program with
 * more privileges than its caller (set-user-id). */
static bool is_trusted(uid_t uid)
{
	const char *named = secure_getenv("LEEWARD_TRUSTED_UID");
	char number[24];

	snprintf(number, sizeof number, "%lu", (unsigned long)uid);
	return named && !strcmp(named, number);
}

/* Connect, if this process has no connection yet. Returns a leeward_error.
 *
 * The daemon must run as root, as our own user or as the trusted one: the default folder of a user without XDG_RUNTIME_DIR
 * is in /tmp, where anybody may have made it first. */
int lw_connection_connect(struct lw_connection *connection)
{
	struct ucred peer;
	socklen_t size = sizeof peer;
	uid_t own = geteuid();
	int failed;

	if (connection->fd >= 0)
		return LEEWARD_OK;
	if (!connection->data) {
		connection->data = malloc(READ_SIZE);
		if (!connection->data)
			return lw_fail_no_memory();
		connection->capacity = READ_SIZE;
	}
	connection->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connection->fd < 0)
		return away_errno(connection, errno);
	/* connect(2) on a Unix socket waits by the send timeout while the backlog is full. */
	failed = set_timeout(connection->fd, SO_SNDTIMEO, LW_CONNECT_S);
	if (!failed)
		do
			failed = connect_path(connection->fd, connection->path);
		while (failed == -EINTR);
	if (!failed)
		failed = set_timeout(connection->fd, SO_RCVTIMEO, (time_t)LW_PATIENCE_S);
	if (!failed && getsockopt(connection->fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
		failed = -errno;
	if (failed) {
		lw_connection_close(connection);
		return failed == -EAGAIN ? lw_connection_away(connection, "no program accepted the connection")
				 : away_errno(connection, -failed);
	}
	if (own != 0 && peer.uid != own && peer.uid != 0 && !is_trusted(peer.uid)) {
		char reason[100];

		lw_connection_close(connection);
		snprintf(reason, sizeof reason, "the socket is of user %lu, neither root nor you, nor LEEWARD_TRUSTED_UID",
			 (unsigned long)peer.uid);
		return lw_connection_away(connection, reason);
	}
	connection->pid = getpid();
	return LEEWARD_OK;
}

/* Close the connection, if there is one, and drop what was received but not taken. */
void lw_connection_close(struct lw_connection *connection)
{
	if (connection->fd >= 0)
		close(connection->fd);
	connection->fd = -1;
	connection->length = 0;
	if (connection->arena.fd >= 0)
		close(connection->arena.fd);
	connection->arena = (struct lw_arena){.fd = -1};
	while (connection->descriptor_count)
		close(connection->descriptors[--connection->descriptor_count]);
}

void lw_connection_free(struct lw_connection *connection)
{
	lw_connection_close(connection);
	free(connection->path);
	free(connection->data);
}

/* Send as much of *data* as the socket takes without blocking. Returns bytes, or -errno; -EAGAIN: none. */
ssize_t lw_connection_send(struct lw_connection *connection, const uint8_t *data, size_t length)
{
	ssize_t sent;

	do
		sent = send(connection->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : sent;
}

/* Add the descriptors of one message to the queue. Returns whether there was room for all. */
static bool queue_descriptors(struct lw_connection *connection, struct msghdr *message)
{
	bool fits = true;

	for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
		size_t count;

		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
			continue;
		count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
			if (connection->descriptor_count < sizeof connection->descriptors / sizeof *connection->descriptors) {
				connection->descriptors[connection->descriptor_count++] = fd;
			} else {
				close(fd);
				fits = false;
			}
		}
	}
	return fits;
}

/* Double the buffer if it is full. It grows with the bytes that have arrived, not with a frame's claimed length. */
static bool make_room(struct lw_connection *connection)
{
	uint8_t *grown;

	if (connection->length < connection->capacity)
		return true;
	grown = realloc(connection->data, connection->capacity * 2);
	if (!grown)
		return false;
	connection->data = grown;
	connection->capacity *= 2;
	return true;
}

/* One read, which may *wait* LW_PATIENCE_S for the first byte. Returns bytes, 0 at the end of the stream, -EAGAIN if nothing
 * came, -EOVERFLOW if a descriptor was lost, or another -errno. */
ssize_t lw_connection_receive(struct lw_connection *connection, bool wait)
{
	union {
		char room[CMSG_SPACE(LW_MAX_DESCRIPTORS * sizeof(int))];
		struct cmsghdr aligned;
	} ancillary;
	struct iovec into;
	struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &ancillary,
				 .msg_controllen = sizeof ancillary};
	ssize_t got;

	if (!make_room(connection))
		return -ENOMEM;
	into = (struct iovec){connection->data + connection->length, connection->capacity - connection->length};
	got = recvmsg(connection->fd, &message, MSG_CMSG_CLOEXEC | (wait ? 0 : MSG_DONTWAIT));
	if (got < 0)
		return -errno;
	connection->length += (size_t)got;
	if (!queue_descriptors(connection, &message) || message.msg_flags & MSG_CTRUNC)
		return -EOVERFLOW;
	return got;
}

/* Wait until the socket is ready, with *mask* as the signal mask unless that is NULL. Returns 1, 0 when *seconds* have passed,
 * or -errno. */
int lw_connection_wait(struct lw_connection *connection, short events, double seconds, const sigset_t *mask)
{
	struct pollfd poll_for = {.fd = connection->fd, .events = events};
	double most = seconds >= 1e6 ? 1e6 : seconds <= 0 ? 0 : seconds;
	struct timespec time = {.tv_sec = (time_t)most};
	int ready;

	time.tv_nsec = (long)((most - (double)time.tv_sec) * 1e9);
	ready = ppoll(&poll_for, 1, &time, mask);

	return ready < 0 ? -errno : ready > 0;
}

/* Take the next whole frame. Returns 1 with a malloc'ed block: header, payload of *ret_length* bytes, one spare byte; 0 if no
 * frame is complete; -EBADMSG for a length above LW_MAX_REPLY; -ENOMEM. */
int lw_connection_take(struct lw_connection *connection, uint8_t **ret_block, size_t *ret_length)
{
	size_t length, whole;
	uint8_t *block;

	if (connection->length < LW_HEADER)
		return 0;
	const uint8_t *data = connection->data;

	length = (size_t)data[0] << 24 | (size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3];
	if (length > LW_MAX_REPLY)
		return -EBADMSG;
	whole = LW_HEADER + length;
	if (connection->length < whole)
		return 0;
	if (connection->length == whole && connection->capacity > READ_SIZE && connection->capacity > whole) {
		/* The buffer holds one large frame and nothing else: give it away without a copy. */
		block = connection->data;
		connection->data = malloc(READ_SIZE);
		if (!connection->data) {
			connection->data = block;
			return -ENOMEM;
		}
		connection->capacity = READ_SIZE;
	} else {
		block = malloc(whole + 1);
		if (!block)
			return -ENOMEM;
		memcpy(block, connection->data, whole);
		memmove(connection->data, connection->data + whole, connection->length - whole);
	}
	connection->length -= whole;
	*ret_block = block;
	*ret_length = length;
	return 1;
}

/* --- memory files -------------------------------------------------------------- */

/* Map *fd* read-only, if it is sealed and has exactly *size* bytes: a file that can still shrink could end the process by
 * SIGBUS, and one that can still be written could change while it is read. Returns NULL, or what is wrong. */
static const char *map_one(int fd, size_t size, struct lw_mapping *ret_mapping)
{
	const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat about;
	void *start;

	if (seals < 0)
		return "the daemon sent a descriptor that is no memory file";
	if ((seals & wanted) != wanted)
		return "the daemon sent a memory file that isn't sealed";
	if (fstat(fd, &about) || about.st_size < 0 || (uint64_t)about.st_size != size)
		return "the daemon sent a memory file of another size than it announced";
	start = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (start == MAP_FAILED)
		return "a result can't be mapped: this process has no room for it";
	*ret_mapping = (struct lw_mapping){start, size};
	return NULL;
}

/* Remove the first *count* descriptors from the queue without closing them. */
static void shift_descriptors(struct lw_connection *connection, size_t count)
{
	connection->descriptor_count -= count;
	memmove(connection->descriptors, connection->descriptors + count,
		connection->descriptor_count * sizeof *connection->descriptors);
}

/* Map the memory files that *reply* announces; their descriptors are the first of the queue. Returns a leeward_error. */
int lw_memfile_map(struct lw_connection *connection, const struct lw_reply *reply,
		   struct lw_mapping ret_mappings[LW_MAX_ARENAS])
{
	struct lw_mapping mappings[LW_MAX_ARENAS] = {{NULL, 0}};
	const char *wrong = NULL;

	if (connection->descriptor_count < reply->arena_count)
		wrong = "the daemon broke the protocol: a memory file that was announced didn't come";
	for (size_t i = 0; !wrong && i < reply->arena_count; i++)
		wrong = map_one(connection->descriptors[i], reply->arenas[i], &mappings[i]);
	if (wrong) {
		lw_unmap(mappings);
		return lw_fail(LEEWARD_BAD_REPLY, "%s", wrong);
	}
	for (size_t i = 0; i < reply->arena_count; i++)
		close(connection->descriptors[i]);
	shift_descriptors(connection, reply->arena_count);
	memcpy(ret_mappings, mappings, sizeof mappings);
	return LEEWARD_OK;
}

/* Take the socket that came with *reply*; the caller closes it. Returns what is wrong with it, or NULL. */
const char *lw_dock_take(struct lw_connection *connection, const struct lw_reply *reply, int *ret_socket)
{
	struct lw_sandbox_dock_answer dock = {0};
	struct stat about;

	if (!LW_READ(&reply->ok, sandbox_dock, &dock) || !dock.socket || reply->arena_count)
		return "an invalid dock";
	if (!connection->descriptor_count)
		return "a socket that was announced didn't come";
	if (fstat(connection->descriptors[0], &about) || !S_ISSOCK(about.st_mode))
		return "a dock that isn't a socket";
	*ret_socket = connection->descriptors[0];
	shift_descriptors(connection, 1);
	return NULL;
}

/* Take the arena that came with *reply*. Returns what is wrong with it, or NULL. */
const char *lw_arena_take(struct lw_connection *connection, const struct lw_reply *reply)
{
	struct lw_arena_answer arena = {0};
	struct stat about;
	int seals;

	if (!LW_READ(&reply->ok, arena, &arena) || !arena.slots || arena.slots > LW_MAX_SLOTS || !arena.size ||
	    arena.size > LW_MAX_SLOT || reply->arena_count != 1 || reply->arenas[0] != arena.slots * arena.size)
		return "an invalid arena";
	if (!connection->descriptor_count)
		return "a memory file that was announced didn't come";
	seals = fcntl(connection->descriptors[0], F_GET_SEALS);
	if (connection->arena.fd >= 0 || seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(connection->descriptors[0], &about) ||
	    about.st_size < 0 || (uint64_t)about.st_size != reply->arenas[0])
		return "an arena with an invalid file";
	connection->arena = (struct lw_arena){connection->descriptors[0], (size_t)arena.slots, (size_t)arena.size, 0, true};
	shift_descriptors(connection, 1);
	return NULL;
}

/* Write a request into a free slot. Returns the slot; -1 if there is none, or the request doesn't fit. */
int lw_arena_put(struct lw_connection *connection, const uint8_t *payload, size_t length)
{
	struct lw_arena *arena = &connection->arena;
	size_t done = 0;
	int slot = 0;

	if (arena->fd < 0 || length > arena->size)
		return -1;
	while ((size_t)slot < arena->count && arena->taken >> slot & 1)
		slot++;
	if ((size_t)slot == arena->count)
		return -1;
	while (done < length) {
		ssize_t step = pwrite(arena->fd, payload + done, length - done, (off_t)((size_t)slot * arena->size + done));

		if (step < 0 && errno == EINTR)
			continue;
		if (step <= 0)
			return -1; /* the host has no memory for the whole request; the socket takes it in pieces */
		done += (size_t)step;
	}
	arena->taken |= UINT64_C(1) << slot;
	return slot;
}

/* Free a slot whose request was answered. Does nothing for -1. */
void lw_arena_free_slot(struct lw_connection *connection, int slot)
{
	if (slot >= 0)
		connection->arena.taken &= ~(UINT64_C(1) << slot);
}
