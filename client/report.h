/*
 * report.h - ask a mount's daemon for a report, as a client of its own.
 */
#ifndef GAIA_CLIENT_REPORT_H
#define GAIA_CLIENT_REPORT_H

/* Ask for a report (GAIA_REPORT_*) of @fd's mount or file: 0 and *@text, to be freed, or a negative errno. */
int fetch_report(int fd, unsigned what, char **text);
/* The same, but returns the report's descriptor, or a negative errno. */
int fetch_report_fd(int fd, unsigned what);

#endif
