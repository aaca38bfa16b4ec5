#!/usr/bin/env python3
"""check_decides.py ROOT FILE...: what a row's "decides" names is there.

It is text like "client/cuda.c: map_memory(), in cuda_place()": the file, and the first function() in that file;
others are in client/ or daemon/ somewhere. "rule 3" is a rule of the file."""
import glob
import os
import re
import sys

root, sources = sys.argv[1], sys.argv[2:]
faults = []
named = 0
everything = ''


def read(*path):
    with open(os.path.join(*path), encoding='utf-8') as file:
        return file.read()


def has(function, text):
    return re.search(r'\b%s\(' % function, text)


for path in glob.glob(os.path.join(root, 'client', '*.[ch]')) + glob.glob(os.path.join(root, 'daemon', '**', '*.[ch]'),
                                                                        recursive=True):
    everything += read(path)
for source in sources:
    for string in re.findall(r'"((?:[^"\\\n]|\\.)*)"', read(source)):
        for path, colon, text in re.findall(r'\b((?:client|daemon)/[\w/]+\.\w+)(: )?(.*?)(?=\. client/|$)', string):
            named += 1
            if not colon or not os.path.exists(os.path.join(root, path)):
                faults.append(f'{path}: there is no such file, or no colon: {string}')
                continue
            there = read(root, path)
            functions = re.findall(r'(\w+)\(\)', text)
            faults += [f'{path} has no {name}(): {string}' for name in functions[:1] if not has(name, there)]
            faults += [f'nobody has {name}(): {string}' for name in functions[1:] if not has(name, everything)]
            faults += [f'{path} has no rule {rule}: {string}' for rule in re.findall(r'\brule (\d+)', text)
                       if not re.search(r'^[ *]*%s\. ' % rule, there, re.M)]
if named < 20:
    faults.append(f'only {named} places are named')
if faults:
    sys.exit('\n'.join(faults))
