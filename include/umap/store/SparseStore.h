/*
 * umap/store/SparseStore.h - a store in a directory: files of equal size, each made when a page of it is first
 * written. What no file has yet reads as zeros.
 *
 *	Umap::SparseStore *store = new Umap::SparseStore(length, page_size, path, file_size);	a new one, or
 *	Umap::SparseStore *store = new Umap::SparseStore(path, read_only);			one that is there
 *	if (store->get_directory_creation_status())
 *		...errno...
 *	void *region = Umap::umap_ex(NULL, length, prot, UMAP_PRIVATE, -1, 0, store);
 *	...
 *	uunmap(region, length);
 *	store->close_files();
 *	delete store;
 *
 * What is in the directory is not in UMap's own format: neither library opens what the other has made. Nothing is
 * thrown. All functions are thread-safe, but for close_files() and the destructor.
 */
#ifndef GAIA_COMPAT_UMAP_SPARSE_STORE_H
#define GAIA_COMPAT_UMAP_SPARSE_STORE_H

#include <cstdio>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <sys/stat.h>
#include <umap/umap.h>
#include <vector>

namespace Umap
{

class SparseStore : public Store
{
      public:
	/* A new directory; all of its store's bytes are zero. Files are of file_size bytes, rounded up to pages. EEXIST: there is one. */
	SparseStore(std::size_t size, std::size_t page_size, std::string path, std::size_t file_size) : path_(path), read_only_(false)
	{
		if (!page_size)
			page_size = 4096;
		if (!file_size || file_size > size)
			file_size = size;
		file_size_ = (file_size + page_size - 1) / page_size * page_size;
		size_ = size;
		if (!size) {
			fail(EINVAL);
		} else if (mkdir(path_.c_str(), 0777) && (errno != EEXIST || !access(facts().c_str(), F_OK))) {
			fail(errno);
		} else if (write_facts()) {
			fail(errno);
		} else {
			set_up();
		}
	}

	/* One that was made before. */
	SparseStore(std::string path, bool read_only) : path_(path), read_only_(read_only)
	{
		if (read_facts(path_, &size_, &file_size_))
			fail(errno);
		else
			set_up();
	}

	~SparseStore() { close_files(); }

	ssize_t read_from_store(char *buf, std::size_t n, off_t offset) override { return each(false, buf, n, offset); }
	ssize_t write_to_store(char *buf, std::size_t n, off_t offset) override { return each(true, buf, n, offset); }

	/* 0, or -1: the constructor failed, and every read and write will. errno says why just after it. */
	int get_directory_creation_status() const { return status_; }

	/* The store's size in bytes, which it was made with. */
	std::size_t get_current_capacity() const { return size_; }

	/* The same of a directory; 0 with errno if there is no store in it. */
	static std::size_t get_capacity(std::string path)
	{
		std::size_t size, file_size;

		return read_facts(path, &size, &file_size) ? 0 : size;
	}

	/* Close all files: 0, or -1 with errno of the last that failed. To be called after uunmap(). */
	int close_files()
	{
		int result = 0;

		for (int &fd : files_) {
			if (fd >= 0 && close(fd))
				result = -1;
			fd = -1;
		}
		return result;
	}

      private:
	std::string path_;
	bool read_only_;
	int status_ = 0;
	std::size_t size_ = 0, file_size_ = 0;
	std::mutex lock_; /* of files_ */
	std::vector<int> files_;

	void fail(int error)
	{
		status_ = -1;
		size_ = 0;
		errno = error;
	}

	void set_up() { files_.assign((size_ + file_size_ - 1) / file_size_, -1); }

	static std::string facts_of(const std::string &path) { return path + "/gaia-sparse-store"; }
	std::string facts() const { return facts_of(path_); }

	int write_facts() const
	{
		FILE *file = fopen(facts().c_str(), "wx");

		if (!file)
			return -1;
		bool good = fprintf(file, "1 %zu %zu\n", size_, file_size_) > 0;
		return fclose(file) || !good ? -1 : 0;
	}

	static int read_facts(const std::string &path, std::size_t *size, std::size_t *file_size)
	{
		FILE *file = fopen(facts_of(path).c_str(), "r");
		int version = 0;

		if (!file)
			return -1;
		bool good = fscanf(file, "%d %zu %zu", &version, size, file_size) == 3 && version == 1 && *size && *file_size;
		fclose(file);
		if (!good)
			errno = EINVAL;
		return good ? 0 : -1;
	}

	/* The descriptor of file n; -1: it is not there yet, and write is false; -2: an error. */
	int file(std::size_t n, bool write)
	{
		std::lock_guard<std::mutex> guard(lock_);

		if (files_[n] >= 0)
			return files_[n];
		std::string name = path_ + "/" + std::to_string(n);
		int fd = open(name.c_str(), (read_only_ ? O_RDONLY : O_RDWR) | (write ? O_CREAT : 0) | O_CLOEXEC, 0666);
		if (fd < 0)
			return errno == ENOENT && !write ? -1 : -2;
		if (write && ftruncate(fd, static_cast<off_t>(file_size_))) {
			int error = errno;
			close(fd);
			errno = error;
			return -2;
		}
		return files_[n] = fd;
	}

	/* pread() or pwrite() of each file's part. */
	ssize_t each(bool write, char *buf, std::size_t n, off_t offset)
	{
		std::size_t done = 0, at = static_cast<std::size_t>(offset);

		if (status_ || (write && read_only_)) {
			errno = status_ ? EIO : EROFS;
			return -1;
		}
		while (done < n && at + done < files_.size() * file_size_) {
			std::size_t in_file = (at + done) % file_size_, part = n - done;
			if (part > file_size_ - in_file)
				part = file_size_ - in_file;
			int fd = file((at + done) / file_size_, write);
			if (fd == -2)
				return -1;
			StoreFile file(nullptr, 0, 0, fd);
			ssize_t did = fd < 0 ? 0 : write ? file.write_to_store(buf + done, part, static_cast<off_t>(in_file))
							 : file.read_from_store(buf + done, part, static_cast<off_t>(in_file));
			if (did < 0)
				return -1;
			if (!write && static_cast<std::size_t>(did) < part)
				std::memset(buf + done + did, 0, part - static_cast<std::size_t>(did));
			if (write && static_cast<std::size_t>(did) < part)
				return static_cast<ssize_t>(done) + did;
			done += part;
		}
		if (write && !done && n) {
			errno = ENOSPC;
			return -1;
		}
		return static_cast<ssize_t>(done);
	}
};

} // namespace Umap
#endif
