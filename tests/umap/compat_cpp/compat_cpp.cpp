/*
 * compat_cpp.cpp - a program as it would be written for LLNL's UMap, in C++: stores of its own, sparse stores, and prefetching.
 *
 *	compat_cpp DIRECTORY		makes files in it; ends with 77 where there is no paging
 */
#include <umap/store/SparseStore.h>
#include <umap/umap.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define CHECK(condition)                                                                                                                   \
	do {                                                                                                                               \
		if (!(condition)) {                                                                                                        \
			fprintf(stderr, "compat_cpp.cpp:%d: %s (errno: %s)\n", __LINE__, #condition, strerror(errno));                     \
			exit(1);                                                                                                           \
		}                                                                                                                          \
	} while (0)

static std::string place;
static size_t page_size;

/* Word i is i, until it is changed: changes are kept in memory. Notes what it is asked for. */
class Numbers : public Umap::Store
{
      public:
	Numbers(size_t n) : bytes_(n * 8)
	{
		for (size_t i = 0; i < n; i++)
			std::memcpy(&bytes_[i * 8], &i, 8);
	}

	ssize_t read_from_store(char *buf, size_t n, off_t offset) override
	{
		size_t at = static_cast<size_t>(offset);

		look_at(n, at);
		if (at >= bytes_.size())
			return 0;
		n = std::min(n, bytes_.size() - at);
		std::memcpy(buf, &bytes_[at], n);
		return static_cast<ssize_t>(n);
	}

	/* At most half of what it is asked for, as pwrite(2) may. */
	ssize_t write_to_store(char *buf, size_t n, off_t offset) override
	{
		size_t at = static_cast<size_t>(offset);

		look_at(n, at);
		if (at + n > bytes_.size()) {
			errno = ENOSPC;
			return -1;
		}
		n = (n + 1) / 2;
		std::memcpy(&bytes_[at], buf, n);
		return static_cast<ssize_t>(n);
	}

	uint64_t word(size_t i) const
	{
		uint64_t word;

		std::memcpy(&word, &bytes_[i * 8], 8);
		return word;
	}

	std::atomic<bool> asked_for_two_pages{false};
	std::atomic<unsigned> asked{0};

      private:
	std::vector<char> bytes_;

	void look_at(size_t n, size_t at)
	{
		asked++;
		if (at / page_size != (at + n - 1) / page_size)
			asked_for_two_pages = true;
	}
};

static void a_store_is_read_and_written_by_pages()
{
	const size_t n = 64 * page_size / 8;
	Numbers numbers(n);
	uint64_t *region = static_cast<uint64_t *>(Umap::umap_ex(NULL, n * 8, PROT_READ | PROT_WRITE, UMAP_PRIVATE, -1, 0, &numbers));

	CHECK(region != UMAP_FAILED);
	std::vector<umap_prefetch_item> items;
	for (size_t page = 0; page < 4; page++) {
		umap_prefetch_item item = {reinterpret_cast<char *>(region) + page * page_size};
		items.push_back(item);
	}
	umap_prefetch(static_cast<int>(items.size()), &items[0]);
	std::vector<std::thread> threads;
	for (size_t t = 0; t < 4; t++) {
		threads.emplace_back([=] {
			for (size_t i = t; i < n; i += 4) {
				CHECK(region[i] == i);
				region[i] = i * 3;
			}
		});
	}
	for (auto &thread : threads)
		thread.join();
	for (size_t i = 0; i < n; i++)
		CHECK(region[i] == i * 3);
	CHECK(!umap_flush());
	for (size_t i = 0; i < n; i++)
		CHECK(numbers.word(i) == i * 3);
	region[3] = 7;
	CHECK(!uunmap(region, n * 8));
	CHECK(numbers.word(3) == 7);
	CHECK(numbers.asked > 0 && !numbers.asked_for_two_pages);
}

/* Of a store that ends earlier. */
static void what_a_store_lacks_is_zero()
{
	Numbers numbers(page_size / 8 + 10);
	uint64_t *region = static_cast<uint64_t *>(umap_ex(NULL, 4 * page_size, PROT_READ, UMAP_PRIVATE, -1, 0, &numbers));

	CHECK(region != UMAP_FAILED);
	CHECK(region[page_size / 8 + 9] == page_size / 8 + 9);
	for (size_t i = page_size / 8 + 10; i < 4 * page_size / 8; i++)
		CHECK(region[i] == 0);
	CHECK(!uunmap(region, 4 * page_size));
}

static sigjmp_buf after_the_fault;

static void on_bus_error(int)
{
	siglongjmp(after_the_fault, 1);
}

/* Only its third page can be read, and nothing be written. */
class Broken : public Umap::Store
{
      public:
	ssize_t read_from_store(char *buf, size_t n, off_t offset) override
	{
		if (static_cast<size_t>(offset) / page_size != 2)
			throw std::runtime_error("there is nothing here");
		std::memset(buf, 'x', n);
		return static_cast<ssize_t>(n);
	}
	ssize_t write_to_store(char *, size_t, off_t) override { throw 1; }
};

static void what_a_store_throws_is_an_error()
{
	Broken broken;
	char *region = static_cast<char *>(umap_ex(NULL, 4 * page_size, PROT_READ | PROT_WRITE, UMAP_PRIVATE, -1, 0, &broken));
	volatile char *bytes = region;

	CHECK(region != UMAP_FAILED);
	CHECK(bytes[2 * page_size + 5] == 'x');
	signal(SIGBUS, on_bus_error);
	if (!sigsetjmp(after_the_fault, 1)) {
		(void)bytes[page_size];
		CHECK(!"a page that cannot be read is there");
	}
	signal(SIGBUS, SIG_DFL);
	CHECK(bytes[2 * page_size + 6] == 'x');
	bytes[2 * page_size + 6] = 'y';
	CHECK(umap_flush() == -1 && errno == EIO);
	CHECK(uunmap(region, 4 * page_size) == -1 && errno == EIO);
	CHECK(uunmap(region, 4 * page_size) == -1 && errno == EINVAL);
}

static void a_store_can_be_made_of_a_file()
{
	int fd = open((place + "/file").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);

	CHECK(fd >= 0 && !ftruncate(fd, static_cast<off_t>(8 * page_size)));
	Umap::Store *store = Umap::Store::make_store(NULL, 8 * page_size, page_size, fd);
	char *region = static_cast<char *>(umap_ex(NULL, 8 * page_size, PROT_READ | PROT_WRITE, UMAP_PRIVATE, fd, 0, store));
	CHECK(region != UMAP_FAILED);
	std::memset(region + 3, 'a', 7 * page_size);
	CHECK(!uunmap(region, 8 * page_size));
	char byte;
	CHECK(pread(fd, &byte, 1, static_cast<off_t>(7 * page_size)) == 1 && byte == 'a');
	CHECK(pread(fd, &byte, 1, static_cast<off_t>(7 * page_size + 3)) == 1 && byte == 0);
	delete store;
	close(fd);
}

static bool exists(const std::string &path)
{
	return !access(path.c_str(), F_OK);
}

static void a_sparse_store_has_files_where_something_was_stored()
{
	const std::string path = place + "/sparse";
	const size_t file_size = 4 * page_size, size = 8 * file_size - 100;
	Umap::SparseStore *store = new Umap::SparseStore(size, page_size, path, file_size);

	CHECK(store->get_directory_creation_status() == 0);
	CHECK(store->get_current_capacity() == size);
	char *region = static_cast<char *>(umap_ex(NULL, size, PROT_READ | PROT_WRITE, UMAP_PRIVATE, -1, 0, store));
	CHECK(region != UMAP_FAILED);
	for (size_t at = 0; at < size; at += page_size)
		CHECK(region[at] == 0);
	region[0] = 'f';
	region[2 * file_size + 17] = 'g';
	region[size - 1] = 'h';
	CHECK(!uunmap(region, size));
	CHECK(exists(path + "/0") && !exists(path + "/1") && exists(path + "/2") && exists(path + "/7"));
	CHECK(store->close_files() == 0);
	delete store;

	CHECK(Umap::SparseStore::get_capacity(path) == size);
	store = new Umap::SparseStore(path, true);
	CHECK(store->get_directory_creation_status() == 0 && store->get_current_capacity() == size);
	region = static_cast<char *>(umap_ex(NULL, size, PROT_READ, UMAP_PRIVATE, -1, 0, store));
	CHECK(region != UMAP_FAILED);
	CHECK(region[0] == 'f' && region[1] == 0 && region[2 * file_size + 17] == 'g' && region[size - 1] == 'h');
	CHECK(!uunmap(region, size));
	char byte = 'x';
	CHECK(store->write_to_store(&byte, 1, 0) == -1 && errno == EROFS);
	delete store;

	Umap::SparseStore again(size, page_size, path, file_size), none(path + "/none", true);
	CHECK(again.get_directory_creation_status() != 0 && none.get_directory_creation_status() != 0);
	CHECK(Umap::SparseStore::get_capacity(path + "/none") == 0);
}

static bool there_is_paging()
{
	Numbers numbers(page_size / 8);
	void *region = umap_ex(NULL, page_size, PROT_READ, UMAP_PRIVATE, -1, 0, &numbers);

	if (region == UMAP_FAILED && errno == ENOTSUP)
		return false;
	CHECK(region != UMAP_FAILED && !uunmap(region, page_size));
	return true;
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	place = argv[1];
	page_size = umapcfg_get_umap_page_size();
	if (!there_is_paging()) {
		printf("there is no paging: no stores\n");
		return 77;
	}
	CHECK(!system(("rm -rf '" + place + "/sparse'").c_str()));
	a_store_is_read_and_written_by_pages();
	what_a_store_lacks_is_zero();
	what_a_store_throws_is_an_error();
	a_store_can_be_made_of_a_file();
	a_sparse_store_has_files_where_something_was_stored();
	printf("all is well\n");
	return 0;
}
