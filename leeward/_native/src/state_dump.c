/* Writes the state of this process into a memory file: its registers, its mappings, and the pages that are no file's.
 *
 * Runs in:  a process that shares the memory of a child, which a kernel has forked for that and which has ended; and in each
 *           copy of it, which returns from the child's call.
 * Source:   proc(5), /proc/pid/smaps; madvise(2), MADV_DONTNEED; mm/memory.c
 *
 * Theory of operation. The state is "inside lw_state_dump": lw_state_mark has stored the registers, and returns a second
 * time in a copy. Then the writer begins, on a stack of its own, so that the kernel has no child, for which a job might wait.
 * It says how many bytes it needs at most, gets a memory file whose pages exist already, so that they are charged to whoever
 * has made it, and writes into it.
 *
 * The kernel tells a process that may not be traced nothing about single pages, but how many of a mapping it has made of its
 * own. So of a mapping of a file the pages that differ from the file are found by comparison with the file, until there are
 * as many. While the memory file is being made the writer compares, and writes afterwards, all in one row.
 *
 * Nothing of the C library is called, which might write to memory: there are raw system calls, and functions of this file.
 *
 * What a fork wipes is empty in copies, too: the C library may keep random numbers there (vgetrandom).
 *
 * A block of the C library's that is a mapping by itself, as of a large array, is grown by mremap(2). In a copy, where it is
 * mapped from the state's file, it would have what lies behind it there, and behind the file's end nothing (SIGBUS). So its
 * first page is a run by itself, which the loader copies: the block is then two mappings, mremap(2) refuses it, and the C
 * library copies it into a new one.
 *
 * The zygote's memory file has no name, and the loader gets it from the daemon. A file that can't be found by its name,
 * or lies where the sandbox writes, is taken as memory, with all of its pages. */

#include "state_private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes of smaps that are read, at most: some 10,000 mappings. */
#define TEXT (8UL << 20)
/* The writer's stack. */
#define STACK (64UL << 10)
/* Of a piece of a file that is mapped for comparison. */
#define PIECE (4UL << 20)
/* The text of smaps has more bytes for each mapping. */
#define A_MAPPING 256
#define SPACE (STACK + TEXT + 2 * PAGE)
/* Runs that are written at once, at most: below the kernel's own limit. */
#define VECTORS 256
/* Of zeros one behind the other, after which they are let go. */
#define EMPTY (64UL << 20)
/* Bytes before a block of the C library's in its first page, at most: for alignments up to 64. */
#define BLOCK_ALIGNED 0x30
/* Beside pages: what the tables need of the file for one of the pages. */
#define A_PAGE (PAGE + sizeof(struct run))

int lw_state_mark(uint64_t *registers) __attribute__((returns_twice, visibility("hidden")));

#if defined(__x86_64__)
__asm__(".text\n"
	".globl lw_state_mark\n"
	".hidden lw_state_mark\n"
	".type lw_state_mark, @function\n"
	"lw_state_mark:\n\t"
	"endbr64\n\t"
	"mov %rbx, (%rdi)\n\t"
	"mov %rbp, 8(%rdi)\n\t"
	"mov %r12, 16(%rdi)\n\t"
	"mov %r13, 24(%rdi)\n\t"
	"mov %r14, 32(%rdi)\n\t"
	"mov %r15, 40(%rdi)\n\t"
	"lea 8(%rsp), %rdx\n\t"
	"mov %rdx, 48(%rdi)\n\t"
	"mov (%rsp), %rdx\n\t"
	"mov %rdx, 56(%rdi)\n\t"
	"stmxcsr 64(%rdi)\n\t"
	"fnstcw 68(%rdi)\n\t"
	"xor %eax, %eax\n\t"
	"ret\n\t"
	".size lw_state_mark, . - lw_state_mark\n");

struct vector {
	const char *base;
	uint64_t size;
};

struct work {
	char *space;           /* two pages that nobody may touch, and between them the writer's stack and the text of smaps */
	char *text;
	long length;
	struct part *parts;
	struct file *files;
	const char **names;
	uint32_t part_count, file_count;
	int answers;           /* the pipe on which it is told */
	int memory;            /* the zygote's memory file, or -1 */
	int file;              /* the memory file of the state */
	uint64_t most;         /* its bytes */
	uint64_t limit;        /* up to which it may be written by pwritev(2): RLIMIT_FSIZE */
	char *into;            /* where it is mapped, if that is less */
	uint64_t end;          /* of the pages in it */
	struct run *runs;
	uint32_t run_count, run_room;
	uint32_t closed;       /* so many runs get no more pages */
};

UNCHECKED static void *fresh_memory(uint64_t size)
{
	const long at = raw6(SYS_mmap, 0, (long)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return failed(at) ? NULL : (void *)at;
}

UNCHECKED static int equal(const char *one, const char *other, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++)
		if (one[i] != other[i])
			return 0;
	return 1;
}

UNCHECKED static long name_of(struct lw_state *state, const char *name, uint32_t length, long error)
{
	if (length > LW_STATE_NAME - 1)
		length = LW_STATE_NAME - 1;
	copy(state->name, name, length);
	state->name[length] = 0;
	return error;
}

/* The number of the file of *found*, which is added if it is new; -1 if it has to be taken as memory. */
UNCHECKED static int file_of(struct work *work, const struct mapping *found, uint64_t scratch)
{
	char path[4096];
	struct stat now;

	if (!found->inode || found->length >= sizeof(path) || found->name[0] != '/' || scratch == LW_EVERY_FILE)
		return -1;
	for (uint32_t i = work->file_count; i > 0; i--)
		if (work->files[i - 1].inode == found->inode && work->files[i - 1].length == found->length &&
		    equal(work->names[i - 1], found->name, found->length))
			return (int)i - 1;
	copy(path, found->name, found->length);
	path[found->length] = 0;
	const long file = raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0, 0);
	if (file < 0)
		return -1;
	const long got = raw(SYS_fstat, file, (long)&now, 0, 0, 0);
	raw(SYS_close, file, 0, 0, 0, 0);
	if (got < 0 || now.st_ino != found->inode || now.st_dev == scratch || !S_ISREG(now.st_mode))
		return -1;
	work->names[work->file_count] = found->name;
	work->files[work->file_count] = (struct file){
		.device = now.st_dev, .inode = now.st_ino, .size = (uint64_t)now.st_size,
		.seconds = (uint64_t)now.st_mtim.tv_sec, .nanoseconds = (uint64_t)now.st_mtim.tv_nsec, .length = found->length,
	};
	return (int)work->file_count++;
}

/* Read the mappings. Returns the bytes that the state needs at most, or -errno. */
UNCHECKED static int64_t look(struct lw_state *state, struct work *work, uint64_t scratch, uint64_t memory_file)
{
	struct mapping found;
	uint64_t most = 4 * PAGE; /* the head, and what is touched from now on */

	work->text = work->space + PAGE + STACK;
	work->length = read_all("/proc/self/smaps", work->text, TEXT - 1);
	if (work->length < 0)
		return work->length;
	const char *const end = work->text + work->length;
	const uint64_t count = (uint64_t)work->length / A_MAPPING + 1;
	char *const tables = fresh_memory(pages(count * (sizeof(struct part) + sizeof(struct file) + sizeof(char *))));
	if (!tables)
		return -ENOMEM;
	work->parts = (struct part *)tables;
	work->files = (struct file *)(tables + count * sizeof(struct part));
	work->names = (const char **)(tables + count * (sizeof(struct part) + sizeof(struct file)));
	for (const char *at = work->text; (at = next_mapping(at, end, &found));) {
		const uint64_t from = (uint64_t)(uintptr_t)work->space, to = from + SPACE;

		/* The writer's own is left out. The pages around it may have joined what lies beside them. */
		if (found.start < to && from < found.end) {
			if (found.start < from)
				found.end = from;
			else
				found.start = to;
		}
		if (found.start >= found.end || found.start >= 1UL << 63)
			continue; /* or [vsyscall] */
		const int of_kernel = found.length > 2 && found.name[0] == '[' && found.name[1] == 'v';
		const int of_memory = memory_file && found.inode == memory_file && found.length > 7 && equal(found.name, "/memfd:", 7);
		const int file = of_kernel || of_memory ? -1 : file_of(work, &found, scratch);
		const uint32_t kind = of_kernel ? OF_KERNEL : of_memory ? OF_MEMORY : file < 0 ? ANONYMOUS : OF_FILE;
		/* What is only read, as the C library's tables, may as well be mapped privately. */
		if (found.shared && found.protection & PROT_WRITE)
			return name_of(state, found.name, found.length, -ENOTSUP);
		if (work->part_count == count)
			return -E2BIG;
		struct part *const part = &work->parts[work->part_count++];
		*part = (struct part){
			.start = found.start, .end = found.end, .offset = found.offset,
			.kind = kind, .protection = found.protection,
			.flags = found.flags, .file = file < 0 ? 0 : (uint32_t)file,
			/* What may not be read may lie behind the file's end. */
			.touched = kind == ANONYMOUS && found.inode && found.protection ? found.end - found.start : found.touched,
		};
		most += sizeof(*part) + sizeof(struct file) + found.length + part->touched / PAGE * A_PAGE;
	}
	return (int64_t)pages(most + PAGE);
}

/* Write *size* bytes of *count* pieces side by side into the file. By pwritev(2), since a fault of each page of a mapping
 * takes four times as long; but not beyond the limit on files' sizes, which doesn't hold for mappings. */
UNCHECKED static int put_all(struct work *work, uint64_t at, struct vector *pieces, uint32_t count, uint64_t size)
{
	if (at + size > work->most)
		return -ENOSPC;
	while (size && at + size <= work->limit) {
		const long some = raw(SYS_pwritev, work->file, (long)pieces, count, (long)at, 0);
		if (some <= 0)
			return some < 0 ? (int)some : -EIO;
		at += (uint64_t)some;
		size -= (uint64_t)some;
		uint64_t done = (uint64_t)some;
		for (; count && done >= pieces->size; count--)
			done -= pieces++->size;
		if (count) {
			pieces->base += done;
			pieces->size -= done;
		}
	}
	if (size && !work->into) {
		const long into = raw6(SYS_mmap, 0, (long)work->most, PROT_READ | PROT_WRITE, MAP_SHARED, work->file, 0);
		if (failed(into))
			return (int)into;
		work->into = (char *)into;
	}
	for (; size && count; count--, pieces++) {
		copy(work->into + at, pieces->base, pieces->size);
		at += pieces->size;
	}
	return 0;
}

UNCHECKED static int put(struct work *work, uint64_t at, const void *content, uint64_t size)
{
	struct vector piece = { content, size };

	return put_all(work, at, &piece, 1, size);
}

/* Write the content of the runs. */
UNCHECKED static int put_runs(struct work *work)
{
	struct vector pieces[VECTORS];
	uint64_t at = PAGE, size = 0;
	uint32_t count = 0;
	int err = 0;

	for (uint32_t i = 0; i < work->run_count && !err; i++) {
		pieces[count++] = (struct vector){ (const char *)work->runs[i].start, work->runs[i].size };
		size += work->runs[i].size;
		if (count == VECTORS || i + 1 == work->run_count) {
			err = put_all(work, at, pieces, count, size);
			at += size;
			size = count = 0;
		}
	}
	return err;
}

/* Add the pages from *page* to *end* to the runs. */
UNCHECKED static int take(struct work *work, const struct part *part, uint64_t page, uint64_t end)
{
	struct run *last = &work->runs[work->run_count];

	if (page >= end)
		return 0;
	if (work->run_count == part->first || work->run_count == work->closed || last[-1].start + last[-1].size != page) {
		if (work->run_count == work->run_room)
			return -ENOSPC;
		work->runs[work->run_count++] = (struct run){ .start = page, .at = work->end };
	}
	work->runs[work->run_count - 1].size += end - page;
	work->end += end - page;
	return 0;
}

/* Whether a block begins with *page* that is a mapping by itself: glibc's malloc.c, IS_MMAPPED, behind what aligns it. */
UNCHECKED static int begins_block(const uint64_t *page)
{
	for (uint64_t at = 0; at <= BLOCK_ALIGNED; at += 16) {
		const uint64_t before = page[at / 8], size = page[at / 8 + 1];
		if (before == at && (size & 7) == 2 && (at + size - 2) % PAGE == 0)
			return 1;
	}
	return 0;
}

/* Add *page* as a run by itself. */
UNCHECKED static int take_apart(struct work *work, const struct part *part, uint64_t page)
{
	work->closed = work->run_count;
	const int err = take(work, part, page, page + PAGE);
	work->closed = work->run_count;
	return err;
}

typedef uint64_t words __attribute__((vector_size(16)));

UNCHECKED static int is_zero(const void *page)
{
	const words *const at = page;

	for (unsigned i = 0; i < PAGE / sizeof(words); i += 4) {
		const words any = at[i] | at[i + 1] | at[i + 2] | at[i + 3];
		if (any[0] | any[1])
			return 0;
	}
	return 1;
}

UNCHECKED static int differs(const void *one, const void *other)
{
	const words *const a = one, *const b = other;

	for (unsigned i = 0; i < PAGE / sizeof(words); i += 4) {
		const words any = (a[i] ^ b[i]) | (a[i + 1] ^ b[i + 1]) | (a[i + 2] ^ b[i + 2]) | (a[i + 3] ^ b[i + 3]);
		if (any[0] | any[1])
			return 1;
	}
	return 0;
}

/* Unmap zeros, with the page tables that reading them has made: a reservation may be far larger than the memory of the
 * sandbox. -EPIPE if nobody waits for the state any more. */
UNCHECKED static int let_go(const struct work *work, uint64_t start)
{
	struct { int fd; short events, told; } answers = { work->answers, 0, 0 };

	raw(SYS_munmap, (long)start, EMPTY, 0, 0, 0);
	return raw(SYS_poll, (long)&answers, 1, 0, 0, 0) == 1 ? -EPIPE : 0;
}

UNCHECKED static int take_memory(struct work *work, const struct part *part, uint64_t used)
{
	/* Nothing below the stack pointer is part of the state. */
	uint64_t since = part->start < used && used < part->end ? used : part->start, page = since, left = part->touched;
	uint64_t zeros = since;
	int err = 0;

	/* Zeros that were written are among those that are left, so that the search may go on to the end. */
	for (; page < part->end && left && !err; page += PAGE)
		if (is_zero((const void *)page)) {
			err = take(work, part, since, page);
			since = page + PAGE;
			if (!err && since - zeros == EMPTY) {
				err = let_go(work, zeros);
				zeros = since;
			}
		} else {
			left -= PAGE;
			zeros = page + PAGE;
			if (begins_block((const uint64_t *)page)) {
				err = take(work, part, since, page);
				if (!err)
					err = take_apart(work, part, page);
				since = zeros;
			}
		}
	return err ? err : take(work, part, since, page);
}

UNCHECKED static int take_changed(struct work *work, const struct part *part)
{
	uint64_t left = part->touched;
	long file = work->memory;
	int err = 0;

	if (part->kind == OF_FILE) {
		char path[4096];
		const struct file *const found = &work->files[part->file];
		copy(path, work->names[part->file], found->length);
		path[found->length] = 0;
		file = raw(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0, 0);
	}
	for (uint64_t at = part->start; at < part->end && left && !err; at += PIECE) {
		const uint64_t some = part->end - at < PIECE ? part->end - at : PIECE;
		const long aside = raw6(SYS_mmap, 0, (long)some, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file,
					(long)(part->offset + (at - part->start)));
		if (failed(aside))
			return (int)aside;
		for (uint64_t done = 0; done < some && left && !err; done += PAGE)
			if (differs((const void *)(at + done), (const void *)((uint64_t)aside + done))) {
				err = take(work, part, at + done, at + done + PAGE);
				left -= PAGE;
			}
		raw(SYS_munmap, aside, (long)some, 0, 0, 0);
	}
	if (part->kind == OF_FILE)
		raw(SYS_close, file, 0, 0, 0, 0);
	return err;
}

/* Find the pages that are written. Returns 0, or -errno. */
UNCHECKED static int find_pages(struct work *work, const struct head *head)
{
	int err = 0;

	for (uint32_t i = 0; i < work->part_count && !err; i++) {
		struct part *const part = &work->parts[i];

		part->first = work->run_count;
		if (part->touched && part->kind != OF_KERNEL && !(part->flags & WIPED)) {
			if (!(part->protection & PROT_READ))
				err = (int)raw(SYS_mprotect, (long)part->start, (long)(part->end - part->start), PROT_READ, 0, 0);
			if (!err)
				err = part->kind == ANONYMOUS ? take_memory(work, part, (head->registers[6] & ~(PAGE - 1)) - PAGE) :
								take_changed(work, part);
		}
		part->count = work->run_count - part->first;
	}
	return err;
}

/* Write the pages, the tables and the head. Returns the bytes of the whole, or -errno. */
UNCHECKED static int64_t write_state(struct work *work, struct head *head)
{
	int err = put_runs(work);

	head->runs = work->end;
	head->parts = head->runs + (uint64_t)work->run_count * sizeof(struct run);
	head->files = head->parts + (uint64_t)work->part_count * sizeof(struct part);
	head->names = head->files + (uint64_t)work->file_count * sizeof(struct file);
	head->size = head->names;
	for (uint32_t i = 0; i < work->file_count && !err;) {
		struct vector pieces[VECTORS];
		uint64_t size = 0;
		uint32_t count = 0;
		for (; i < work->file_count && count < VECTORS; i++) {
			work->files[i].name = (uint32_t)(head->size - head->names + size);
			size += work->files[i].length;
			pieces[count++] = (struct vector){ work->names[i], work->files[i].length };
		}
		err = put_all(work, head->size, pieces, count, size);
		head->size += size;
	}
	if (!err)
		err = put(work, head->runs, work->runs, head->parts - head->runs);
	if (!err)
		err = put(work, head->parts, work->parts, head->files - head->parts);
	if (!err)
		err = put(work, head->files, work->files, head->names - head->files);
	head->part_count = work->part_count;
	head->file_count = work->file_count;
	head->run_count = work->run_count;
	head->name_size = (uint32_t)(head->size - head->names);
	head->magic = LW_STATE_MAGIC;
	if (!err)
		err = put(work, 0, head, sizeof(*head));
	return err ? err : (int64_t)head->size;
}

/* Take the memory file, which was asked for. Returns its descriptor, or -errno. */
UNCHECKED static long received(int orders)
{
	char byte, control[64] __attribute__((aligned(8)));
	struct { void *base; size_t size; } vector = { &byte, 1 };
	struct msghdr message = { .msg_iov = (void *)&vector, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };

	const long got = raw(SYS_recvmsg, orders, (long)&message, MSG_CMSG_CLOEXEC, 0, 0);
	if (got <= 0 || message.msg_controllen < CMSG_LEN(sizeof(int)))
		return got < 0 ? got : -ECANCELED;
	int file;
	copy(&file, control + CMSG_LEN(0), sizeof(file));
	return file;
}

struct writer {
	struct lw_state *state;
	char *space;
	int orders, answers, memory, gate;
	uint64_t scratch;
};

UNCHECKED static int64_t dump(const struct writer *writer)
{
	struct lw_state *const state = writer->state;
	const int memory = writer->memory;
	struct work work = { .end = PAGE, .answers = writer->answers, .memory = memory, .space = writer->space };
	struct head head = { 0 };
	struct { uint64_t at; uint32_t flags; uint64_t size; } stack;
	struct stat about = { 0 };
	uint64_t limits[2] = { 0, 0 }, touched = 0;
	char byte;

	const long known = memory < 0 ? 0 : raw(SYS_fstat, memory, (long)&about, 0, 0, 0);
	const int64_t most = known < 0 ? known : look(state, &work, writer->scratch, about.st_ino);
	if (raw(SYS_read, writer->gate, (long)&byte, 1, 0, 0) == 1)
		raw_exit(0); /* it isn't wanted any more */
	if (most < 0)
		return most;
	for (uint32_t i = 0; i < work.part_count; i++)
		touched += work.parts[i].touched / PAGE;
	work.run_room = (uint32_t)touched + 16;
	work.runs = fresh_memory(pages(work.run_room * sizeof(struct run)));
	const long told = work.runs ? raw(SYS_write, writer->answers, (long)&most, sizeof(most), 0, 0) : -ENOMEM;
	if (told != (long)sizeof(most))
		return told < 0 ? told : -EPIPE;
	work.most = (uint64_t)most;
	if (raw(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, (long)limits, 0) == 0)
		work.limit = limits[0] < (uint64_t)INT64_MAX ? limits[0] : (uint64_t)INT64_MAX;

	copy(head.registers, state->registers, sizeof(head.registers));
	head.state = (uint64_t)(uintptr_t)state;
	head.memory = about.st_ino;
	head.brk = (uint64_t)raw(SYS_brk, 0, 0, 0, 0, 0);
	head.first_brk = first_brk();
	head.thread_pointer = (uint64_t)(uintptr_t)__builtin_thread_pointer();
	if (raw(SYS_sigaltstack, 0, (long)&stack, 0, 0, 0) == 0) {
		head.stack_at = stack.at;
		head.stack_flags = stack.flags;
		head.stack_size = stack.size;
	}
	for (int number = 1; number <= SIGNALS; number++)
		raw(SYS_rt_sigaction, number, 0, (long)&head.actions[number - 1], 8, 0);
	const int err = find_pages(&work, &head);
	const long file = err < 0 ? err : received(writer->orders);
	if (file < 0)
		return file;
	work.file = (int)file;
	const int64_t size = write_state(&work, &head);
	if (work.into)
		raw(SYS_munmap, (long)work.into, most, 0, 0, 0);
	return size;
}

/* In a copy: what the loader could not do from outside of the memory. */
static int64_t resume(struct lw_state *state)
{
	extern void *__curbrk __attribute__((weak));

	*(int *)state->thread.tid_address = (int)raw(SYS_gettid, 0, 0, 0, 0, 0);
	raw(SYS_set_tid_address, (long)state->thread.tid_address, 0, 0, 0, 0);
	lw_reborn(&state->thread);
	/* In another layout the kernel's heap may end above ours: the C library would take its refusal to grow for success. */
	if (&__curbrk && (uint64_t)state->brk > (uint64_t)(uintptr_t)__curbrk)
		__curbrk = (void *)(uintptr_t)state->brk;
	raw(SYS_munmap, (long)state->block, (long)state->block_size, 0, 0, 0);
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&state->mask, 0, sizeof(state->mask), 0);
	return 1;
}

__attribute__((noreturn)) UNCHECKED static void write_and_exit(const struct writer *writer)
{
	int64_t size = dump(writer);

	raw(SYS_write, writer->answers, (long)&size, sizeof(size), 0, 0);
	if (size < 0)
		raw(SYS_write, writer->answers, (long)writer->state->name, sizeof(writer->state->name), 0, 0);
	raw_exit(size < 0);
}

/* A process that shares this one's memory, with the stack below *top*. By clone(2), since jobs have no clone3. */
UNCHECKED static long begin_writer(char *top, const struct writer *writer)
{
	register long none __asm__("r10") = 0;
	register long thread __asm__("r8") = 0;
	register const struct writer *with __asm__("r12") = writer;
	long ret;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r12, %%rdi\n\t"
			 "call *%[entry]\n\t"
			 "ud2\n"
			 "1:"
			 : "=a"(ret)
			 : "a"((long)SYS_clone), "D"((long)(CLONE_VM | SIGCHLD)), "S"(top), "d"(0L), "r"(none), "r"(thread), "r"(with),
			   [entry] "r"(write_and_exit)
			 : "rcx", "r11", "memory");
	return ret;
}

/* Have the state of this process written, which is a child made for that, with one thread. *orders* is a socket by which the
 * memory file comes, *answers* a pipe on which the bytes that it needs are asked for. Files on the device *scratch* are taken
 * as memory; *memory* is the zygote's memory file, or -1. Returns 1 in a copy. In the child it doesn't return: that writes
 * to *number* the process which writes the state, and exits. That one reads from *gate* whether it isn't wanted, and writes
 * to *answers* the bytes of the state, or -errno and state->name. */
int64_t lw_state_dump(struct lw_state *state, int orders, int answers, uint64_t scratch, int memory, int gate, int number)
{
	uint64_t all = ~0UL;
	struct writer writer = { state, fresh_memory(SPACE), orders, answers, memory, gate, scratch };
	const int err = lw_thread_now(&state->thread);

	if (err < 0)
		return err;
	/* glibc's; musl has a lock there. */
	if (!state->thread.tid_address || *(int *)state->thread.tid_address != (int)raw(SYS_gettid, 0, 0, 0, 0, 0))
		return -ENOTSUP;
	if (!writer.space || raw(SYS_mprotect, (long)writer.space, PAGE, PROT_NONE, 0, 0) < 0 ||
	    raw(SYS_mprotect, (long)(writer.space + SPACE - PAGE), PAGE, PROT_NONE, 0, 0) < 0)
		return -ENOMEM;
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&state->mask, sizeof(all), 0);
	if (lw_state_mark(state->registers))
		return resume(state);
	int64_t pid = begin_writer(writer.space + PAGE + STACK, &writer);
	if (pid > 0)
		raw(SYS_write, number, (long)&pid, sizeof(pid), 0, 0);
	raw_exit(pid < 0);
}

#else

int64_t lw_state_dump(struct lw_state *state, int orders, int answers, uint64_t scratch, int memory, int gate, int number)
{
	(void)state, (void)orders, (void)answers, (void)scratch, (void)memory, (void)gate, (void)number;
	return -ENOSYS;
}

#endif
