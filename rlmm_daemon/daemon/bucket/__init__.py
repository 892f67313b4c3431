"""The bucket's marker and presence files: whose bucket it is, what is held, and who else is there.

It answers whether objects may be written or deleted now, and where they lie; it deletes none.
"""
