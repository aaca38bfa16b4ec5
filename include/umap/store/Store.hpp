/*
 * umap/store/Store.hpp - what a region of Umap::umap_ex() reads from and writes to. A program derives its own:
 *
 *	class Squares : public Umap::Store {
 *		ssize_t read_from_store(char *buf, size_t n, off_t offset) override { ...fill buf...; return n; }
 *		ssize_t write_to_store(char *buf, size_t n, off_t offset) override { errno = EROFS; return -1; }
 *	};
 *	Squares squares;
 *	void *region = Umap::umap_ex(NULL, length, PROT_READ, UMAP_PRIVATE, -1, 0, &squares);
 *
 * All of it is inline: a C++ compiler is needed by the program only. See umap/umap.h.
 */
#ifndef GAIA_COMPAT_UMAP_STORE_HPP
#define GAIA_COMPAT_UMAP_STORE_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <sys/types.h>
#include <unistd.h>

namespace Umap
{

class Store
{
      public:
	virtual ~Store() {}

	/*
	 * Put the n bytes at offset in buf. Return how many, as pread(2): fewer at the end of the store (what is
	 * missing reads as zeros), and -1 with errno on an error. Never more than a page, or bytes of two. Called by
	 * the library's threads, several at a time; must not touch the region, nor wait for a thread that does.
	 */
	virtual ssize_t read_from_store(char *buf, std::size_t n, off_t offset) = 0;

	/* The reverse, as pwrite(2). The rest of a short write is written by another call. buf must not be changed. */
	virtual ssize_t write_to_store(char *buf, std::size_t n, off_t offset) = 0;

	/* A store over a descriptor, which stays the caller's. The other parameters mean nothing here. */
	static Store *make_store(void *region, std::size_t region_size, std::size_t page_size, int fd);

	/* For umap_ex() alone: arg is the Store. 0, or a negative errno. */
	static int gaia_read(void *arg, void *buf, std::size_t n, std::uint64_t offset)
	{
		char *to = static_cast<char *>(buf);

		try {
			errno = EIO;
			ssize_t got = static_cast<Store *>(arg)->read_from_store(to, n, static_cast<off_t>(offset));
			if (got < 0)
				return errno > 0 ? -errno : -EIO;
			if (static_cast<std::size_t>(got) < n)
				std::memset(to + got, 0, n - static_cast<std::size_t>(got));
			return 0;
		} catch (...) {
			return -EIO;
		}
	}

	static int gaia_write(void *arg, const void *buf, std::size_t n, std::uint64_t offset)
	{
		char *from = const_cast<char *>(static_cast<const char *>(buf));

		try {
			while (n) {
				errno = EIO;
				ssize_t put = static_cast<Store *>(arg)->write_to_store(from, n, static_cast<off_t>(offset));
				if (put <= 0)
					return put < 0 && errno > 0 ? -errno : -EIO;
				if (static_cast<std::size_t>(put) >= n)
					break;
				from += put;
				n -= static_cast<std::size_t>(put);
				offset += static_cast<std::uint64_t>(put);
			}
			return 0;
		} catch (...) {
			return -EIO;
		}
	}
};

/* Of make_store(). */
class StoreFile : public Store
{
      public:
	StoreFile(void *, std::size_t, std::size_t, int fd) : fd_(fd) {}

	ssize_t read_from_store(char *buf, std::size_t n, off_t offset) override
	{
		std::size_t done = 0;

		while (done < n) {
			ssize_t got = pread(fd_, buf + done, n - done, offset + static_cast<off_t>(done));
			if (got < 0 && errno == EINTR)
				continue;
			if (got < 0)
				return -1;
			if (!got)
				break;
			done += static_cast<std::size_t>(got);
		}
		return static_cast<ssize_t>(done);
	}

	ssize_t write_to_store(char *buf, std::size_t n, off_t offset) override
	{
		ssize_t put;

		do
			put = pwrite(fd_, buf, n, offset);
		while (put < 0 && errno == EINTR);
		return put;
	}

      private:
	int fd_;
};

inline Store *Store::make_store(void *region, std::size_t region_size, std::size_t page_size, int fd)
{
	return new StoreFile(region, region_size, page_size, fd);
}

} // namespace Umap
#endif
