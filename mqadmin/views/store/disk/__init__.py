"""The use of the disk, its forecast, and the groups that lose messages by deletions."""

from mqadmin.views.view import Rest, Tab, View

VIEW = View(__name__, Rest("Store", "inside_disk", "/store"), tabs=(Tab("disk", "Disk", 60),))
