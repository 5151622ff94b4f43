/* Writes the state of this process into a memory file: its registers, its mappings, and the pages that are no file's.
 *
 * Runs in:  a child that a kernel has forked for that, with one thread; and in each copy of it, which returns from the
 *           same call.
 * Source:   proc(5), /proc/pid/smaps; madvise(2), MADV_DONTNEED; mm/memory.c
 *
 * Theory of operation. The state is "inside lw_state_dump": lw_state_mark has stored the registers, and returns a second
 * time in a copy. The child says how many bytes it needs at most, gets a memory file whose pages exist already, so that they
 * are charged to whoever has made it, and writes into it.
 *
 * The kernel tells a process that may not be traced nothing about single pages. So of a mapping of a file the pages that
 * differ from the file are found by comparison: a piece is copied aside, dropped, by which the file's content appears, and
 * compared. After that the tables of the libraries are void, and so from then on nothing of the C library is called:
 * there are raw system calls, and functions of this file. Only the child's own memory is spoiled, and the child exits.
 *
 * What a fork wipes is empty in copies, too: the C library may keep random numbers there (vgetrandom).
 *
 * The zygote's memory file has no name, and the loader gets it from the daemon. A file that can't be found by its name,
 * or lies where the sandbox writes, is taken as memory, with all of its pages. */

#include "state_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bytes of smaps that are read, at most: some 10,000 mappings. */
#define TEXT (8UL << 20)
/* Of a piece that is compared. */
#define PIECE (1UL << 20)
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

struct work {
	char *text;
	long length;
	struct part *parts;
	struct file *files;
	const char **names;
	char *piece;
	uint64_t size;         /* of the mapping from parts on */
	uint32_t part_count, file_count;
	int file;              /* the memory file */
	uint64_t most;         /* its bytes */
	uint64_t limit;        /* up to which it may be written by pwrite(2): RLIMIT_FSIZE */
	char *into;            /* where it is mapped, if that is less */
	uint64_t end;          /* of the pages in it */
	struct run *runs;
	uint32_t run_count, run_room;
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

	if (!found->inode || found->length >= sizeof(path) || found->name[0] != '/')
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
	/* The text lies between two pages that nobody may touch, so that it is a mapping of its own. */
	char *const space = fresh_memory(TEXT + 2 * PAGE);
	struct mapping found;
	uint32_t count = 0;
	uint64_t most = 4 * PAGE; /* the head, and what is touched from now on */

	if (!space || raw(SYS_mprotect, (long)space, PAGE, PROT_NONE, 0, 0) < 0 ||
	    raw(SYS_mprotect, (long)(space + PAGE + TEXT), PAGE, PROT_NONE, 0, 0) < 0)
		return -ENOMEM;
	work->text = space + PAGE;
	work->length = read_all("/proc/self/smaps", work->text, TEXT - 1);
	if (work->length < 0)
		return work->length;
	const char *const end = work->text + work->length;
	for (const char *at = work->text; (at = next_mapping(at, end, &found));)
		count++;
	work->size = pages(count * (sizeof(struct part) + sizeof(struct file) + sizeof(char *))) + PIECE;
	char *const tables = fresh_memory(work->size);
	if (!tables)
		return -ENOMEM;
	work->parts = (struct part *)tables;
	work->files = (struct file *)(tables + count * sizeof(struct part));
	work->names = (const char **)(tables + count * (sizeof(struct part) + sizeof(struct file)));
	work->piece = tables + work->size - PIECE;
	for (const char *at = work->text; (at = next_mapping(at, end, &found));) {
		const uint64_t from = (uint64_t)(uintptr_t)space, to = from + TEXT + 2 * PAGE;

		/* The text is left out. The pages around it may have joined what lies beside them. */
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
		struct part *const part = &work->parts[work->part_count++];
		*part = (struct part){
			.start = found.start, .end = found.end, .offset = found.offset,
			.kind = kind, .protection = found.protection,
			.flags = found.flags, .file = file < 0 ? 0 : (uint32_t)file,
			.touched = kind == ANONYMOUS && found.inode ? found.end - found.start : found.touched,
		};
		most += sizeof(*part) + sizeof(struct file) + found.length + part->touched / PAGE * A_PAGE;
	}
	return (int64_t)pages(most + PAGE);
}

/* Write *size* bytes into the file. By pwrite(2), since a fault of each page of a mapping takes four times as long, and the
 * kernel would clear the page first; but not beyond the limit on files' sizes, which doesn't hold for mappings. */
UNCHECKED static int put(struct work *work, uint64_t at, const void *content, uint64_t size)
{
	if (at + size > work->most)
		return -ENOSPC;
	while (size && at + size <= work->limit) {
		const long some = raw(SYS_pwrite64, work->file, (long)content, (long)size, (long)at, 0);
		if (some <= 0)
			return some < 0 ? (int)some : -EIO;
		at += (uint64_t)some;
		content = (const char *)content + some;
		size -= (uint64_t)some;
	}
	if (!size)
		return 0;
	if (!work->into) {
		const long into = raw6(SYS_mmap, 0, (long)work->most, PROT_READ | PROT_WRITE, MAP_SHARED, work->file, 0);
		if (failed(into))
			return (int)into;
		work->into = (char *)into;
	}
	copy(work->into + at, content, size);
	return 0;
}

/* Add *size* bytes of pages at *page* to the runs, and write them from *content*. */
UNCHECKED static int take(struct work *work, const struct part *part, uint64_t page, const char *content, uint64_t size)
{
	struct run *last = &work->runs[work->run_count];

	if (!size)
		return 0;
	if (work->run_count == part->first || last[-1].start + last[-1].size != page) {
		if (work->run_count == work->run_room)
			return -ENOSPC;
		work->runs[work->run_count++] = (struct run){ .start = page, .at = work->end };
	}
	const int err = put(work, work->end, content, size);
	work->runs[work->run_count - 1].size += size;
	work->end += size;
	return err;
}

UNCHECKED static int is_zero(const uint64_t *page)
{
	for (unsigned i = 0; i < PAGE / 8; i += 8)
		if (page[i] | page[i + 1] | page[i + 2] | page[i + 3] | page[i + 4] | page[i + 5] | page[i + 6] | page[i + 7])
			return 0;
	return 1;
}

UNCHECKED static int differs(const uint64_t *one, const uint64_t *other)
{
	uint64_t any = 0;

	for (unsigned i = 0; i < PAGE / 8 && !any; i += 4)
		any = (one[i] ^ other[i]) | (one[i + 1] ^ other[i + 1]) | (one[i + 2] ^ other[i + 2]) | (one[i + 3] ^ other[i + 3]);
	return any != 0;
}

UNCHECKED static int take_memory(struct work *work, const struct part *part, uint64_t used)
{
	/* Nothing below the stack pointer is part of the state. */
	uint64_t since = part->start < used && used < part->end ? used : part->start, page = since;
	int err = 0;

	for (; page < part->end && !err; page += PAGE)
		if (is_zero((const uint64_t *)page)) {
			err = take(work, part, since, (const char *)since, page - since);
			since = page + PAGE;
		}
	return err ? err : take(work, part, since, (const char *)since, page - since);
}

UNCHECKED static int take_changed(struct work *work, const struct part *part)
{
	int err = 0;

	for (uint64_t at = part->start; at < part->end && !err; at += PIECE) {
		const uint64_t some = part->end - at < PIECE ? part->end - at : PIECE;
		uint64_t since = 0, done = 0;

		copy(work->piece, (const void *)at, some);
		const int fresh = raw(SYS_madvise, (long)at, (long)some, MADV_DONTNEED, 0, 0) == 0; /* not of locked memory */
		for (; done < some && !err; done += PAGE)
			if (fresh && !differs((const uint64_t *)(work->piece + done), (const uint64_t *)(at + done))) {
				err = take(work, part, at + since, work->piece + since, done - since);
				since = done + PAGE;
			}
		if (!err)
			err = take(work, part, at + since, work->piece + since, done - since);
	}
	return err;
}

/* Write the pages, the tables and the head. Returns the bytes of the whole, or -errno. */
UNCHECKED static int64_t write_state(struct work *work, struct head *head)
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
	head->runs = work->end;
	head->parts = head->runs + (uint64_t)work->run_count * sizeof(struct run);
	head->files = head->parts + (uint64_t)work->part_count * sizeof(struct part);
	head->names = head->files + (uint64_t)work->file_count * sizeof(struct file);
	head->size = head->names;
	for (uint32_t i = 0; i < work->file_count && !err; i++) {
		work->files[i].name = (uint32_t)(head->size - head->names);
		err = put(work, head->size, work->names[i], work->files[i].length);
		head->size += work->files[i].length;
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

/* Ask for a memory file of *most* bytes, and wait for it. Returns its descriptor, or -errno. */
UNCHECKED static long ask(int orders, int answers, int64_t most)
{
	char byte, control[64] __attribute__((aligned(8)));
	struct { void *base; size_t size; } vector = { &byte, 1 };
	struct msghdr message = { .msg_iov = (void *)&vector, .msg_iovlen = 1, .msg_control = control,
				  .msg_controllen = sizeof(control) };

	const long told = raw(SYS_write, answers, (long)&most, sizeof(most), 0, 0);
	if (told != (long)sizeof(most))
		return told < 0 ? told : -EPIPE;
	const long got = raw(SYS_recvmsg, orders, (long)&message, MSG_CMSG_CLOEXEC, 0, 0);
	if (got <= 0 || message.msg_controllen < CMSG_LEN(sizeof(int)))
		return got < 0 ? got : -ECANCELED;
	int file;
	copy(&file, control + CMSG_LEN(0), sizeof(file));
	return file;
}

UNCHECKED static int64_t dump(struct lw_state *state, int orders, int answers, uint64_t scratch, uint64_t memory_file)
{
	struct work work = { .end = PAGE };
	struct head head = { 0 };
	struct { uint64_t at; uint32_t flags; uint64_t size; } stack;
	uint64_t limits[2] = { 0, 0 }, touched = 0;
	const int64_t most = look(state, &work, scratch, memory_file);

	if (most < 0)
		return most;
	for (uint32_t i = 0; i < work.part_count; i++)
		touched += work.parts[i].touched / PAGE;
	work.run_room = (uint32_t)touched + 16;
	work.runs = fresh_memory(pages(work.run_room * sizeof(struct run)));
	const long file = work.runs ? ask(orders, answers, most) : -ENOMEM;
	if (file < 0)
		return file;
	work.file = (int)file;
	work.most = (uint64_t)most;
	if (raw(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, (long)limits, 0) == 0)
		work.limit = limits[0] < (uint64_t)INT64_MAX ? limits[0] : (uint64_t)INT64_MAX;

	/* Before anything is spoiled: *state* may be on the heap. */
	copy(head.registers, state->registers, sizeof(head.registers));
	head.state = (uint64_t)(uintptr_t)state;
	head.memory = memory_file;
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

/* Write the state of this process, which is a child made for that, with one thread, and whose memory is spoiled
 * afterwards. *orders* is a socket by which the memory file comes, *answers* a pipe on which the bytes that it needs are
 * asked for. Files on the device *scratch* are taken as memory; *memory* is the inode of the zygote's memory file, or 0.
 * Returns 1 in a copy. In the child it doesn't return, but writes to *answers* the bytes of the state, or -errno and
 * state->name, and exits. */
int64_t lw_state_dump(struct lw_state *state, int orders, int answers, uint64_t scratch, uint64_t memory)
{
	uint64_t all = ~0UL;
	const int err = lw_thread_now(&state->thread);

	if (err < 0)
		return err;
	raw(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)&state->mask, sizeof(all), 0);
	if (lw_state_mark(state->registers))
		return resume(state);
	int64_t size = dump(state, orders, answers, scratch, memory);
	raw(SYS_write, answers, (long)&size, sizeof(size), 0, 0);
	if (size < 0)
		raw(SYS_write, answers, (long)state->name, sizeof(state->name), 0, 0);
	raw_exit(size < 0);
}

#else

int64_t lw_state_dump(struct lw_state *state, int orders, int answers, uint64_t scratch, uint64_t memory)
{
	(void)state, (void)orders, (void)answers, (void)scratch, (void)memory;
	return -ENOSYS;
}

#endif
