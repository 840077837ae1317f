/* A small web server with the reads of S3 over a folder, and a wait before the first byte of every answer.
 *
 *     front PORT FOLDER DELAY_MS
 *
 * GET and HEAD of /bucket/key with ranges, and listings (list-type=2, prefix, delimiter, pages). Signatures are not
 * looked at. /__stats__ answers at once with the requests and body bytes so far. One thread, epoll, sendfile: an answer
 * costs a few tens of microseconds, so that contenders have the machine's cores for themselves.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 16384, PAGE = 1000, PATH_SIZE = 4096 };

struct line {
    int fd, file;               /* file: what is sent after the text, or -1 */
    size_t got;                 /* bytes of the request so far */
    char request[HEAD_MAX];
    char *text;                 /* header, or header and body */
    size_t text_size, text_sent;
    off_t from, left;           /* of the file */
    double due;
    int waits, closes;
    struct line *next;          /* in the queue of those that wait */
};

static const char *root;
static double delay_s;
static int poller;
static long num_requests, num_bytes;
static struct line *first, *last;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void watch(struct line *l, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = l};
    epoll_ctl(poller, EPOLL_CTL_MOD, l->fd, &e);
}

static void hang_up(struct line *l) {
    if (l->waits) { l->closes = 1; watch(l, 0); return; } /* the queue still has it */
    if (l->file >= 0) close(l->file);
    close(l->fd);
    free(l->text);
    free(l);
}

/* ---- what is asked for ---------------------------------------------------------------------------------------- */

static void decode(char *text, int is_query) {
    char *out = text;
    for (; *text; text++) {
        int high, low;
        if (*text == '%' && sscanf(text + 1, "%1x%1x", &high, &low) == 2) { *out++ = high << 4 | low; text += 2; }
        else *out++ = is_query && *text == '+' ? ' ' : *text;
    }
    *out = 0;
}

/* The value of a query's key, decoded, or "". */
static void value_of(const char *query, const char *key, char *out, size_t size) {
    size_t n = strlen(key);
    *out = 0;
    for (const char *at = query; at && *at; at = strchr(at, '&'), at = at ? at + 1 : 0)
        if (!strncmp(at, key, n) && at[n] == '=') {
            snprintf(out, size, "%.*s", (int)strcspn(at + n + 1, "&"), at + n + 1);
            decode(out, 1);
            return;
        }
}

struct entry { char *key; long size, mtime; };
static struct entry *entries;
static size_t num_entries, room;
static char *listed;

static void collect(const char *folder, const char *prefix) {
    DIR *dir = opendir(folder);
    struct dirent *each;
    if (!dir) return;
    while ((each = readdir(dir))) {
        char path[PATH_SIZE], key[PATH_SIZE];
        struct stat facts;
        if (each->d_name[0] == '.') continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, each->d_name) >= (int)sizeof path) continue;
        if (snprintf(key, sizeof key, "%s%s", prefix, each->d_name) >= (int)sizeof key - 1 || stat(path, &facts)) continue;
        if (S_ISDIR(facts.st_mode)) { strcat(key, "/"); collect(path, key); continue; }
        if (num_entries == room) entries = realloc(entries, (room = room ? 2 * room : 1024) * sizeof *entries);
        entries[num_entries++] = (struct entry){strdup(key), facts.st_size, facts.st_mtime};
    }
    closedir(dir);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct entry *)a)->key, ((const struct entry *)b)->key);
}

static void escape(FILE *out, const char *text) {
    for (; *text; text++)
        if (*text == '&') fputs("&amp;", out);
        else if (*text == '<') fputs("&lt;", out);
        else if (*text == '>') fputs("&gt;", out);
        else fputc(*text, out);
}

/* One page of the objects of a bucket; the token is the last key of the page before. */
static void list(FILE *out, const char *bucket, const char *query) {
    char prefix[1024], delimiter[16], token[1024], after[1024], most[16], folder[PATH_SIZE], common[PATH_SIZE] = "", stamp[64];
    value_of(query, "prefix", prefix, sizeof prefix);
    value_of(query, "delimiter", delimiter, sizeof delimiter);
    value_of(query, "continuation-token", token, sizeof token);
    value_of(query, "start-after", after, sizeof after);
    value_of(query, "max-keys", most, sizeof most);
    if (!*token || !listed || strcmp(listed, bucket)) { /* a new listing looks at the folder anew */
        while (num_entries) free(entries[--num_entries].key);
        snprintf(folder, sizeof folder, "%s/%s", root, bucket);
        collect(folder, "");
        qsort(entries, num_entries, sizeof *entries, by_key);
        free(listed);
        listed = strdup(bucket);
    }
    const char *from = *token ? token : after, *end = 0;
    long count = 0, limit = *most ? atol(most) : PAGE;
    fprintf(out, "<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    fprintf(out, "<Name>%s</Name><Prefix>", bucket);
    escape(out, prefix);
    fprintf(out, "</Prefix><MaxKeys>%ld</MaxKeys>", limit);
    size_t k = 0;
    for (; k < num_entries && count < limit; k++) {
        struct entry *e = &entries[k];
        if (strncmp(e->key, prefix, strlen(prefix)) || (*from && strcmp(e->key, from) <= 0)) continue;
        end = e->key;
        char *cut = *delimiter ? strstr(e->key + strlen(prefix), delimiter) : 0;
        if (cut) {
            size_t size = cut + strlen(delimiter) - e->key;
            if (strlen(common) == size && !strncmp(common, e->key, size)) continue;
            snprintf(common, sizeof common, "%.*s", (int)size, e->key);
            fputs("<CommonPrefixes><Prefix>", out);
            escape(out, common);
            fputs("</Prefix></CommonPrefixes>", out);
        } else {
            time_t t = e->mtime;
            strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S.000Z", gmtime(&t));
            fputs("<Contents><Key>", out);
            escape(out, e->key);
            fprintf(out, "</Key><LastModified>%s</LastModified><ETag>&quot;%lx-%lx&quot;</ETag><Size>%ld</Size>"
                    "<StorageClass>STANDARD</StorageClass></Contents>", stamp, e->size, e->mtime, e->size);
        }
        count++;
    }
    int more = 0;
    for (; k < num_entries && !more; k++) more = !strncmp(entries[k].key, prefix, strlen(prefix));
    fprintf(out, "<KeyCount>%ld</KeyCount><IsTruncated>%s</IsTruncated>", count, more ? "true" : "false");
    if (more && end) {
        fputs("<NextContinuationToken>", out);
        escape(out, end);
        fputs("</NextContinuationToken>", out);
    }
    fputs("</ListBucketResult>", out);
}

/* ---- answers --------------------------------------------------------------------------------------------------- */

static void say(struct line *l, const char *status, const char *kind, const char *body, size_t size, int is_head) {
    FILE *out = open_memstream(&l->text, &l->text_size);
    fprintf(out, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nx-amz-bucket-region: us-east-1\r\n\r\n", status, kind, size);
    if (!is_head) fwrite(body, 1, size, out);
    fclose(out);
}

static void say_file(struct line *l, const char *path, int is_head) {
    struct stat facts;
    char stamp[64], *range = strcasestr(l->request, "\r\nrange: bytes=");
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &facts) || !S_ISREG(facts.st_mode)) {
        const char *text = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>absent</Message></Error>";
        if (file >= 0) close(file);
        say(l, "404 Not Found", "application/xml", text, strlen(text), is_head);
        return;
    }
    long size = facts.st_size, begin = 0, end = size - 1;
    if (range) {
        range += strlen("\r\nrange: bytes=");
        if (*range == '-') begin = size - atol(range + 1) > 0 ? size - atol(range + 1) : 0;
        else {
            begin = strtol(range, &range, 10);
            if (range[0] == '-' && range[1] >= '0' && range[1] <= '9') end = atol(range + 1);
        }
        if (end > size - 1) end = size - 1;
        if (begin > end) {
            close(file);
            say(l, "416 Range Not Satisfiable", "text/plain", "", 0, is_head);
            return;
        }
    }
    FILE *out = open_memstream(&l->text, &l->text_size);
    strftime(stamp, sizeof stamp, "%a, %d %b %Y %H:%M:%S GMT", gmtime(&facts.st_mtime));
    fprintf(out, "HTTP/1.1 %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %ld\r\nAccept-Ranges: bytes\r\n"
            "ETag: \"%lx-%lx\"\r\nLast-Modified: %s\r\n", range ? "206 Partial Content" : "200 OK", end - begin + 1,
            (long)facts.st_size, (long)facts.st_mtime, stamp);
    if (range) fprintf(out, "Content-Range: bytes %ld-%ld/%ld\r\n", begin, end, size);
    fputs("\r\n", out);
    fclose(out);
    if (is_head) close(file);
    else { l->file = file; l->from = begin; l->left = end - begin + 1; num_bytes += l->left; }
}

/* Makes the answer to the request in l->request; whether it is to be waited for. */
static int answer(struct line *l) {
    char target[PATH_SIZE], path[2 * PATH_SIZE], *query, *end;
    int is_head = !strncmp(l->request, "HEAD ", 5);
    l->closes = strcasestr(l->request, "\r\nconnection: close") != 0;
    if (!is_head && strncmp(l->request, "GET ", 4)) {
        say(l, "405 Method Not Allowed", "text/plain", "", 0, 0);
        l->closes = 1;
        return 0;
    }
    snprintf(target, sizeof target, "%.*s", (int)strcspn(l->request + 4 + is_head, " \r"), l->request + 4 + is_head);
    query = strchr(target, '?');
    if (query) *query++ = 0;
    decode(target, 0);
    if (!strcmp(target, "/__stats__")) {
        char text[128];
        int size = snprintf(text, sizeof text, "{\"requests\": %ld, \"bytes\": %ld}", num_requests, num_bytes);
        say(l, "200 OK", "application/json", text, size, is_head);
        return 0;
    }
    num_requests++;
    while ((end = strstr(target, "//"))) memmove(end, end + 1, strlen(end));
    if (strstr(target, "/../")) say(l, "400 Bad Request", "text/plain", "", 0, is_head);
    else if (!(end = strchr(target + 1, '/')) || !end[1]) { /* a bucket */
        char *text = 0;
        size_t size = 0;
        if (end) *end = 0;
        FILE *out = open_memstream(&text, &size);
        if (query && (strstr(query, "list-type=2") || strstr(query, "prefix="))) list(out, target + 1, query);
        else fputs("<?xml version=\"1.0\"?><LocationConstraint/>", out);
        fclose(out);
        say(l, "200 OK", "application/xml", text, size, is_head);
        num_bytes += size;
        free(text);
    } else {
        snprintf(path, sizeof path, "%s%s", root, target);
        say_file(l, path, is_head);
    }
    return 1;
}

/* ---- lines ----------------------------------------------------------------------------------------------------- */

static void begin(struct line *l);

/* Sends what there is of an answer; when all is sent, looks for the next request. */
static void proceed(struct line *l) {
    while (l->text_sent < l->text_size) {
        ssize_t n = send(l->fd, l->text + l->text_sent, l->text_size - l->text_sent, MSG_NOSIGNAL | (l->left ? MSG_MORE : 0));
        if (n < 0) { if (errno == EAGAIN) watch(l, EPOLLOUT); else hang_up(l); return; }
        l->text_sent += n;
    }
    while (l->left > 0) {
        ssize_t n = sendfile(l->fd, l->file, &l->from, l->left);
        if (n <= 0) { if (n < 0 && errno == EAGAIN) watch(l, EPOLLOUT); else hang_up(l); return; }
        l->left -= n;
    }
    if (l->file >= 0) close(l->file);
    l->file = -1;
    free(l->text);
    l->text = 0;
    l->text_size = l->text_sent = 0;
    if (l->closes) { hang_up(l); return; }
    watch(l, EPOLLIN);
    begin(l); /* the next request may be here already */
}

/* Begins with a request, if the whole of its header is here. */
static void begin(struct line *l) {
    l->request[l->got] = 0;
    char *end = strstr(l->request, "\r\n\r\n");
    if (!end) { if (l->got >= HEAD_MAX - 1) hang_up(l); return; }
    *end = 0;
    int waits = answer(l) && delay_s > 0;
    size_t used = end + 4 - l->request;
    memmove(l->request, l->request + used, l->got - used);
    l->got -= used;
    if (!waits) { proceed(l); return; }
    l->waits = 1;
    l->due = now() + delay_s;
    l->next = 0;
    if (last) last->next = l; else first = l;
    last = l;
    watch(l, 0);
}

int main(int argc, char **argv) {
    if (argc != 4) { fprintf(stderr, "usage: front PORT FOLDER DELAY_MS\n"); return 2; }
    root = argv[2];
    delay_s = atof(argv[3]) / 1000;
    signal(SIGPIPE, SIG_IGN);
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (void *)&address, size) || listen(listener, 4096)) { perror("front"); return 1; }
    getsockname(listener, (void *)&address, &size);
    poller = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = 0}, found[256];
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &e);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int timeout = first ? (int)((first->due - now()) * 1000) + 1 : -1;
        int n = epoll_wait(poller, found, 256, first && timeout < 0 ? 0 : timeout);
        for (int k = 0; k < n; k++) {
            struct line *l = found[k].data.ptr;
            if (!l) {
                int fd;
                while ((fd = accept4(listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                    l = calloc(1, sizeof *l);
                    l->fd = fd;
                    l->file = -1;
                    struct epoll_event mine = {.events = EPOLLIN, .data.ptr = l};
                    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &mine);
                }
            } else if (l->waits) { /* it hung up meanwhile; the queue still has it */
                l->closes = 1;
                epoll_ctl(poller, EPOLL_CTL_DEL, l->fd, 0);
            } else if (found[k].events & (EPOLLERR | EPOLLHUP)) hang_up(l);
            else if (found[k].events & EPOLLOUT) proceed(l);
            else {
                ssize_t got = recv(l->fd, l->request + l->got, HEAD_MAX - 1 - l->got, 0);
                if (got <= 0) { if (!(got < 0 && errno == EAGAIN)) hang_up(l); }
                else { l->got += got; begin(l); }
            }
        }
        for (double t = now(); first && first->due <= t;) {
            struct line *l = first;
            first = l->next;
            if (!first) last = 0;
            l->waits = 0;
            proceed(l);
        }
    }
}
