/* metrics.c - see metrics.h. */
#include "metrics.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/latency.h"
#include "base/log.h"
#include "base/util.h"

#define UNIX "unix:"
#define ADDRESS_MOST 64u

/* "ADDRESS:PORT", "[ADDRESS]:PORT" or "PORT", taken apart. */
static const char *take_apart(const char *where, char address[static ADDRESS_MOST], const char **port)
{
	const char *colon = strrchr(where, ':'), *end;
	size_t len = colon ? (size_t)(colon - where) : 0;
	bool brackets = len >= 2 && where[0] == '[' && where[len - 1] == ']';
	unsigned long number;

	*port = colon ? colon + 1 : where;
	number = strtoul(*port, (char **)&end, 10);
	if (**port < '0' || **port > '9' || *end || number < 1 || number > 65535)
		return "the port is not a number from 1 to 65535";
	if (len >= ADDRESS_MOST)
		return "the address is too long";
	snprintf(address, ADDRESS_MOST, "%.*s", (int)(brackets ? len - 2 : len), where + brackets);
	if (!colon)
		strcpy(address, "127.0.0.1");
	return *address ? NULL : "the address is missing";
}

const char *metrics_fault(const char *where)
{
	struct sockaddr_un path;
	char address[ADDRESS_MOST];
	const char *port;

	if (strncmp(where, UNIX, strlen(UNIX)) != 0)
		return take_apart(where, address, &port);
	where += strlen(UNIX);
	return *where != '/' ? "the path of the socket must begin with /" :
	       strlen(where) >= sizeof(path.sun_path) ? "the path of the socket is too long" :
							NULL;
}

#ifdef GAIA_METRICS
#include <microhttpd.h>

#define MOST_CONNECTIONS 16u
#define PATIENCE_S 10u

struct metrics {
	struct cache *cache;
	struct quota *quota;
	struct MHD_Daemon *http;
	char *path; /* of the socket; NULL: it has none */
	dev_t dev;  /* its, to take away no other's */
	ino_t ino;
};

/* ---- the text ---- */

static void put_escaped(FILE *out, const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (text[i] == '\\' || text[i] == '"' || text[i] == '\n')
			putc_unlocked('\\', out);
		putc_unlocked(text[i] == '\n' ? 'n' : text[i], out);
	}
}

/* @unit: the last part of the name, or NULL. */
static void put_family(FILE *out, const char *name, const char *type, const char *unit, const char *help, size_t help_len)
{
	fprintf(out, "# TYPE gaiafs_%s %s\n", name, type);
	if (unit)
		fprintf(out, "# UNIT gaiafs_%s %s\n", name, unit);
	fprintf(out, "# HELP gaiafs_%s ", name);
	put_escaped(out, help, help_len);
	fputc('\n', out);
}

static void put_gauge(FILE *out, const char *name, const char *unit, const char *help, uint64_t value)
{
	put_family(out, name, "gauge", unit, help, strlen(help));
	fprintf(out, "gaiafs_%s %llu\n", name, (unsigned long long)value);
}

static void put_counter(FILE *out, enum counter c)
{
	const char *name = counter_name(c), *text = counter_text(c), *ns = strstr(text, " (ns, ");
	uint64_t value = counter_value(c);
	char seconds[64];

	if (!ns) {
		put_family(out, name, "counter", NULL, text, strlen(text));
		fprintf(out, "gaiafs_%s_total %llu\n", name, (unsigned long long)value);
		return;
	}
	/* The name ends with _ns; Prometheus knows seconds only. */
	snprintf(seconds, sizeof(seconds), "%.*s_seconds", (int)(strlen(name) - strlen("_ns")), name);
	put_family(out, seconds, "counter", "seconds", text, (size_t)(ns - text));
	fprintf(out, "gaiafs_%s_total %llu.%09llu\n", seconds, (unsigned long long)(value / 1000000000),
		(unsigned long long)(value % 1000000000));
}

/* ---- latencies ---- */

static const struct {
	const char *of, *family, *label, *help;
} histograms[] = {
	{ "request", "request_duration_seconds", "request", "how long requests of the kernel take, from when they are received until they are carried out" },
	{ "call", "call_duration_seconds", "call", "how long calls of libgaiaclient take the daemon, until they are answered" },
	{ "device", "device_operation_duration_seconds", "operation", "how long operations of devices take, from when they are submitted until they are seen to have ended" },
	{ "storage", "storage_duration_seconds", "call", "how long reads, writes and syncs of the backing store take" },
};

/* From 1 us to 9 s, powers of two of nanoseconds: there the daemon's own buckets end, too. */
#define BOUND_FIRST 10u
#define BOUND_LAST 33u

#define N_BOUNDS (BOUND_LAST - BOUND_FIRST + 1)

/* What follows the head of a histogram's lines: the bounds in seconds, and what ends the labels. */
static char bound_text[N_BOUNDS][24];
static pthread_once_t bounds_are_there = PTHREAD_ONCE_INIT;

static void make_bounds(void)
{
	for (unsigned i = 0; i < N_BOUNDS; i++) {
		unsigned long long ns = 1ull << (BOUND_FIRST + i);

		snprintf(bound_text[i], sizeof(bound_text[i]), "%llu.%09llu\"} ", ns / 1000000000, ns % 1000000000);
	}
}

/* These are most of the lines, and fprintf() takes a thousand instructions for one. */
static void put_bucket(FILE *out, const char *head, size_t head_len, const char *bound, unsigned long long value)
{
	char digits[24], *at = digits + sizeof(digits);

	*--at = '\n';
	do
		*--at = (char)('0' + value % 10);
	while (value /= 10);
	fwrite_unlocked(head, 1, head_len, out);
	fputs_unlocked(bound, out);
	fwrite_unlocked(at, 1, (size_t)(digits + sizeof(digits) - at), out);
}

static void put_histogram(FILE *out, const char *family, const char *label, enum latency l)
{
	struct latency_values v;
	unsigned long long below = 0, n;
	unsigned k = 0;
	char head[160];
	size_t len = (size_t)snprintf(head, sizeof(head), "gaiafs_%s_bucket{%s=\"%s\",le=\"", family, label, latency_name(l));

	pthread_once(&bounds_are_there, make_bounds);
	latency_read(l, &v);
	n = latency_number(&v);
	for (unsigned i = 0; i < N_BOUNDS; i++) {
		for (; k < LATENCY_BUCKETS && latency_bound_ns(k) <= 1ull << (BOUND_FIRST + i); k++)
			below += v.bucket[k];
		put_bucket(out, head, len, bound_text[i], below);
	}
	put_bucket(out, head, len, "+Inf\"} ", n);
	fprintf(out, "gaiafs_%s_count{%s=\"%s\"} %llu\n", family, label, latency_name(l), n);
	fprintf(out, "gaiafs_%s_sum{%s=\"%s\"} %llu.%09llu\n", family, label, latency_name(l), (unsigned long long)v.sum_ns / 1000000000,
		(unsigned long long)v.sum_ns % 1000000000);
}

static void put_histograms(FILE *out)
{
	for (unsigned i = 0; i < ARRAY_LEN(histograms); i++) {
		put_family(out, histograms[i].family, "histogram", "seconds", histograms[i].help, strlen(histograms[i].help));
		for (enum latency l = 0; l < LATENCY_COUNT; l++)
			if (strcmp(latency_of(l), histograms[i].of) == 0)
				put_histogram(out, histograms[i].family, histograms[i].label, l);
	}
}

/* ---- devices and tiers ---- */

static const struct {
	const char *key, *name, *help;
	bool counts;
} of_device[] = {
	{ "capacity", "device_capacity_bytes", "memory of the device that gaiafs may use", false },
	{ "used", "device_used_bytes", "memory of the device that gaiafs uses", false },
	{ "in_bytes", "device_in_bytes", "bytes moved from host memory to the device", true },
	{ "out_bytes", "device_out_bytes", "bytes moved from the device to host memory", true },
	{ "pinned", "device_pinned_bytes", "memory of the device that cannot be taken back now", false },
	{ "pinned_files_bytes", "device_pinned_files_bytes", "memory of the device that stays with files that are pinned to it", false },
	{ "cache_bytes", "device_cache_bytes", "memory of the device that has pages that left home", false },
	{ "pin_share_bytes", "device_pin_share_bytes", "memory of the device that such files may have", false },
};

static void put_devices(FILE *out, const json_t *devices)
{
	const json_t *device;
	size_t k;

	for (unsigned i = 0; i < ARRAY_LEN(of_device); i++) {
		put_family(out, of_device[i].name, of_device[i].counts ? "counter" : "gauge", "bytes", of_device[i].help, strlen(of_device[i].help));
		json_array_foreach(devices, k, device) {
			const char *name = json_string_value(json_object_get(device, "name"));
			const char *kind = json_string_value(json_object_get(device, "kind"));

			fprintf(out, "gaiafs_%s%s{device=\"", of_device[i].name, of_device[i].counts ? "_total" : "");
			put_escaped(out, name, strlen(name));
			fputs("\",kind=\"", out);
			put_escaped(out, kind, strlen(kind));
			fprintf(out, "\"} %lld\n", (long long)json_integer_value(json_object_get(device, of_device[i].key)));
		}
	}
}

static const char *const tier_labels[] = { "home", "parked", "replicas", "storage" };

/* How many pages came from each the counters say. */
static void put_tiers(FILE *out, const json_t *tiers)
{
	static const char text[] = "what a page that is needed in home is expected to take from there, alone";
	const json_t *tier;
	size_t k;

	put_family(out, "tier_page_seconds", "gauge", "seconds", text, strlen(text));
	json_array_foreach(tiers, k, tier)
		fprintf(out, "gaiafs_tier_page_seconds{tier=\"%s\"} %.9f\n", tier_labels[k], (double)json_integer_value(json_object_get(tier, "page_ns")) / 1e9);
}

static uint64_t number_in(const json_t *object, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(object, key));
}

/* To be freed by the caller; NULL: no memory. */
static char *metrics_text(struct metrics *m, size_t *len)
{
	json_t *status = cache_status_json(m->cache), *devices = json_object_get(status, "devices"), *host = json_object_get(status, "host");
	const json_t *home = json_object_get(status, "home");
	char *text = NULL;
	FILE *out = open_memstream(&text, len);

	if (!out) {
		json_decref(status);
		return NULL;
	}
	put_family(out, "build", "info", NULL, "this daemon", strlen("this daemon"));
	fputs("gaiafs_build_info{version=\"" GAIA_VERSION "\"} 1\n", out);
	put_gauge(out, "home_budget_bytes", "bytes", "host memory for file contents (--home)", number_in(home, "budget"));
	put_gauge(out, "home_used_bytes", "bytes", "of it, used", number_in(home, "used"));
	put_gauge(out, "home_dirty_bytes", "bytes", "in home and not stored yet", number_in(home, "dirty"));
	put_gauge(out, "home_twins_bytes", "bytes", "old bytes of home's pages, kept for merges to come", number_in(home, "twins"));
	put_gauge(out, "files", NULL, "files that the cache knows", number_in(home, "files"));
	put_gauge(out, "unstored_bytes", "bytes", "written or released, and not stored yet: the storage lacks it", number_in(status, "dirty_bytes"));
	put_gauge(out, "only_on_devices_bytes", "bytes", "of it, released by devices and not fetched yet", number_in(status, "only_on_devices_bytes"));
	put_gauge(out, "clients", NULL, "programs that are connected by libgaiaclient", quota_use(m->quota, QUOTA_clients).used);
	/* Of the host's device, too, which has no number. */
	if (json_is_object(host))
		json_array_append(devices, host);
	put_devices(out, devices);
	put_tiers(out, json_object_get(status, "tiers"));
	put_histograms(out);
	/* Every user of the machine may be able to read this: not what is saved because pages are equal, which tells what others have. */
	for (enum counter c = 0; c < CTR_COUNT; c++)
		if (strncmp(counter_name(c), "dedup_", 6) != 0)
			put_counter(out, c);
	fputs("# EOF\n", out);
	json_decref(status);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

/* ---- HTTP ---- */

static enum MHD_Result answer(struct MHD_Connection *c, unsigned code, char *text, size_t len, enum MHD_ResponseMemoryMode mode, const char *type)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(len, text, mode);
	enum MHD_Result result;

	if (!r) {
		if (mode == MHD_RESPMEM_MUST_FREE)
			free(text);
		return MHD_NO;
	}
	MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	result = MHD_queue_response(c, code, r);
	MHD_destroy_response(r);
	return result;
}

static enum MHD_Result on_request(void *arg, struct MHD_Connection *c, const char *url, const char *method, const char *version,
				  const char *upload, size_t *upload_size, void **state)
{
	static char no_method[] = "only GET and HEAD\n", no_page[] = "the metrics are at /metrics\n", no_memory[] = "no memory\n";
	static int seen;
	size_t len;
	char *text;

	/* The first call is for the header alone. What a client uploads is not read: the connection ends then. */
	if (*state != &seen) {
		*state = &seen;
		if (strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0)
			return MHD_YES;
		return answer(c, MHD_HTTP_METHOD_NOT_ALLOWED, no_method, strlen(no_method), MHD_RESPMEM_PERSISTENT, "text/plain");
	}
	if (*upload_size)
		return MHD_NO;
	if (strcmp(url, "/metrics") != 0)
		return answer(c, MHD_HTTP_NOT_FOUND, no_page, strlen(no_page), MHD_RESPMEM_PERSISTENT, "text/plain");
	text = metrics_text(arg, &len);
	if (!text)
		return answer(c, MHD_HTTP_SERVICE_UNAVAILABLE, no_memory, strlen(no_memory), MHD_RESPMEM_PERSISTENT, "text/plain");
	return answer(c, MHD_HTTP_OK, text, len, MHD_RESPMEM_MUST_FREE, "application/openmetrics-text; version=1.0.0; charset=utf-8");
}

static void to_log(void *arg, const char *format, va_list args)
{
	char line[256];

	vsnprintf(line, sizeof(line), format, args);
	log_debug("metrics: %.*s", (int)strcspn(line, "\n"), line);
}

/* ---- the socket ---- */

/* Whether it is a socket that nobody listens at. */
static bool is_stale(const struct sockaddr_un *at)
{
	struct stat st;
	int fd;
	bool refused;

	if (lstat(at->sun_path, &st) || !S_ISSOCK(st.st_mode))
		return false;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	refused = fd >= 0 && connect(fd, (const struct sockaddr *)at, sizeof(*at)) && errno == ECONNREFUSED;
	if (fd >= 0)
		close(fd);
	return refused;
}

static int bind_path(struct metrics *m, int fd, const char *path)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	struct stat st;
	int err;

	snprintf(at.sun_path, sizeof(at.sun_path), "%s", path);
	if (is_stale(&at))
		(void)unlink(path);
	/* The mode of the socket's file is that of its inode here: nobody else can connect at any moment. */
	if (fchmod(fd, 0600) || bind(fd, (struct sockaddr *)&at, sizeof(at)))
		return -errno;
	err = lstat(path, &st) || chmod(path, 0600) ? -errno : 0;
	m->path = memcpy(xmalloc(strlen(path) + 1), path, strlen(path) + 1);
	m->dev = st.st_dev;
	m->ino = st.st_ino;
	return err;
}

static int listen_at_path(struct metrics *m, const char *path)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int err = fd < 0 ? -errno : bind_path(m, fd, path);

	if (!err && listen(fd, MOST_CONNECTIONS))
		err = -errno;
	if (err && fd >= 0)
		close(fd);
	return err ? err : fd;
}

static bool is_loopback(const struct sockaddr *at)
{
	if (at->sa_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)at)->sin_addr.s_addr) >> 24 == 127;
	return at->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)at)->sin6_addr);
}

static int listen_at_address(const char *where)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE, .ai_socktype = SOCK_STREAM }, *at = NULL;
	char address[ADDRESS_MOST];
	const char *port;
	int fd, err = 0;

	if (take_apart(where, address, &port))
		return -EINVAL;
	if (strcmp(address, "localhost") == 0)
		strcpy(address, "127.0.0.1");
	if (getaddrinfo(address, port, &hints, &at))
		return -EADDRNOTAVAIL;
	fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)) || bind(fd, at->ai_addr, at->ai_addrlen) ||
	    listen(fd, MOST_CONNECTIONS))
		err = -errno;
	if (!err && !is_loopback(at->ai_addr))
		log_warn("--metrics %s: whoever reaches this address may read them; nothing protects it", where);
	freeaddrinfo(at);
	if (err && fd >= 0)
		close(fd);
	return err ? err : fd;
}

int metrics_start(const char *where, struct cache *cache, struct quota *quota, struct metrics **out)
{
	struct metrics *m = xcalloc(1, sizeof(*m));
	int fd;

	m->cache = cache;
	m->quota = quota;
	fd = strncmp(where, UNIX, strlen(UNIX)) == 0 ? listen_at_path(m, where + strlen(UNIX)) : listen_at_address(where);
	if (fd < 0) {
		log_error("--metrics %s: %s", where, strerror(-fd));
		metrics_stop(m);
		return fd;
	}
	m->http = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request, m,
				   MHD_OPTION_EXTERNAL_LOGGER, to_log, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
				   MOST_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, PATIENCE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
				   (size_t)16384, MHD_OPTION_END);
	if (!m->http) {
		log_error("--metrics %s: libmicrohttpd does not start", where);
		close(fd);
		metrics_stop(m);
		return -EIO;
	}
	*out = m;
	return 0;
}

void metrics_stop(struct metrics *m)
{
	struct stat st;

	if (!m)
		return;
	if (m->http)
		MHD_stop_daemon(m->http);
	if (m->path && !lstat(m->path, &st) && st.st_dev == m->dev && st.st_ino == m->ino)
		(void)unlink(m->path);
	free(m->path);
	free(m);
}

#else

int metrics_start(const char *where, struct cache *cache, struct quota *quota, struct metrics **out)
{
	log_error("--metrics %s: this gaiafs was built without libmicrohttpd", where);
	return -ENOSYS;
}

void metrics_stop(struct metrics *m)
{
}

#endif
