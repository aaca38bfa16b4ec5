/*
 * picture.h - PNG files, by libpng.
 */
#ifndef EXAMPLE_PICTURE_H
#define EXAMPLE_PICTURE_H

#include <png.h>

#include "common.h"

/* @channels of 8 bits a pixel: 1 (grey) or 3 (red, green, blue). Rows lie one after the other. */
static inline void write_png(const char *path, const unsigned char *pixels, size_t width, size_t height, int channels)
{
	png_image image;

	memset(&image, 0, sizeof(image));
	image.version = PNG_IMAGE_VERSION;
	image.width = (png_uint_32)width;
	image.height = (png_uint_32)height;
	image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
	if (!png_image_write_to_file(&image, path, 0, pixels, 0, NULL))
		errx(1, "%s: %s", path, image.message);
}

/* The same of a PNG file: red, green, blue. The caller frees it. */
static inline unsigned char *read_png(const char *path, size_t *width, size_t *height)
{
	unsigned char *pixels;
	png_image image;

	memset(&image, 0, sizeof(image));
	image.version = PNG_IMAGE_VERSION;
	if (!png_image_begin_read_from_file(&image, path))
		errx(1, "%s: %s", path, image.message);
	image.format = PNG_FORMAT_RGB;
	pixels = (unsigned char *)own_memory(PNG_IMAGE_SIZE(image));
	if (!png_image_finish_read(&image, NULL, pixels, 0, NULL))
		errx(1, "%s: %s", path, image.message);
	*width = image.width;
	*height = image.height;
	return pixels;
}

#endif
